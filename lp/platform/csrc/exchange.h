// An all-gather between the ranks of one host, in the mailbox of parallel/comm/shared_memory.py.
//
// Each rank has two slots, for even and odd rounds, as it may be one round ahead of the others. A slot's number is
// written last and read first, so a reader that sees it sees the rest.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>

struct MailboxSlot {
    int64_t number, checksum, kind, total, length;

    char* part() { return reinterpret_cast<char*>(this + 1); }
    std::atomic<int64_t>& said() { return reinterpret_cast<std::atomic<int64_t>&>(number); }
};

// What stands in place of a checksum, which only messages that Python writes have; and the kind of a message.
constexpr int64_t WRITTEN_NATIVELY = -1, GATHERED = 1;

// One rank's view of the mailbox. slots: the first one; slot_bytes: from one to the next. spins: how often a rank looks
// for the others before it lends its core to somebody else.
struct Mailbox {
    char* slots;
    int64_t slot_bytes, rank, num_ranks, spins;

    MailboxSlot& slot(int64_t of, int64_t round) const {
        return *reinterpret_cast<MailboxSlot*>(slots + (2 * of + round % 2) * slot_bytes);
    }

    // write(part): writes the message.
    template <class Write>
    void publish(int64_t round, int64_t num_bytes, Write write) const {
        MailboxSlot& own = slot(rank, round);
        own.checksum = WRITTEN_NATIVELY;
        own.kind = GATHERED;
        own.total = own.length = num_bytes;
        write(own.part());
        own.said().store(round, std::memory_order_release);
    }

    bool has_arrived(int64_t of, int64_t round) const {
        return slot(of, round).said().load(std::memory_order_acquire) == round;
    }

    // Whether all have arrived, after some spins at most.
    bool have_arrived(int64_t round) const {
        int64_t left = spins;
        for (int64_t of = 0; of < num_ranks; ++of)
            while (!has_arrived(of, round)) {
                if (left-- <= 0) return false;
#if defined(__x86_64__)
                __builtin_ia32_pause();
#endif
            }
        return true;
    }

    // The first rank that has not arrived within some time; -1 if all have.
    int64_t await(int64_t round, int64_t limit_us) const {
        const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(limit_us);
        for (int64_t of = 0; of < num_ranks; ++of)
            while (!has_arrived(of, round)) {
                if (std::chrono::steady_clock::now() >= end) return of;
                sched_yield();
            }
        return -1;
    }

    // -1, or -2 - r if rank r has sent something else.
    int64_t check(int64_t round, int64_t num_bytes) const {
        for (int64_t of = 0; of < num_ranks; ++of) {
            const MailboxSlot& one = slot(of, round);
            if (one.kind != GATHERED || one.total != num_bytes) return -2 - of;
        }
        return -1;
    }
};
