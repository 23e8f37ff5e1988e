// Where the threads of a step meet.
#pragma once

#include <sched.h>

#include <atomic>

// Where threads wait for one another. They spin at first, and let others run if that takes long.
class Meeting {
   public:
    void expect(long num_threads) { num_threads_ = num_threads; }

    void wait() {
        const long round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.store(round + 1, std::memory_order_release);
            return;
        }
        for (long spins = 0; round_.load(std::memory_order_acquire) == round; spins++) {
            if (spins > 4000) sched_yield();
#if defined(__x86_64__)
            else
                __builtin_ia32_pause();
#endif
        }
    }

   private:
    long num_threads_ = 1;
    alignas(64) std::atomic<long> arrived_{0};
    alignas(64) std::atomic<long> round_{0};
};
