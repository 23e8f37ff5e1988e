// The tokens that followed contexts of several lengths: ContextIndex in lp/drafting/ngrams.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ordered_table.h"
#include "proposals.h"

// Most tokens kept for one context, the newest first.
constexpr int FOLLOWERS = 4;

class Followers {
public:
    Followers(const int64_t* lengths, int64_t num_lengths, uint64_t capacity)
        : lengths_(lengths, lengths + num_lengths), capacity_(capacity), known_(FOLLOWERS) {}

    uint64_t size() const { return known_.size(); }

    // Notes that the token followed the context.
    void add(const Context& context, int32_t token) {
        Probe probes[LONGEST];
        probe(context, probes);
        for (size_t place = 0; place < lengths_.size(); ++place) {
            int32_t* followers = known_.put(probes[place].key, probes[place].hash);
            int before = 0;
            while (before < FOLLOWERS - 1 && followers[before] != token && followers[before] != NONE) ++before;
            std::copy_backward(followers, followers + before, followers + before + 1);
            followers[0] = token;
        }
        while (known_.size() > capacity_) known_.drop_oldest();
    }

    // Adds every token of a text that continues a context.
    void add_text(Context context, const int64_t* tokens, int64_t count) {
        for (int64_t at = 0; at < count; ++at) {
            add(context, int32_t(tokens[at]));
            context = extended(context, tokens[at]);
        }
    }

    // Proposes the tokens that followed the longest known end of a path. first: the first kind of the shortest length.
    void propose(const Context& path, int32_t first, Proposals& proposals) const {
        Probe probes[LONGEST];
        probe(path, probes);
        if (lengths_.empty() || !known_.find(probes[0].key, probes[0].hash)) return;
        for (int place = int(lengths_.size()) - 1; place >= 0; --place)
            if (const int32_t* followers = known_.find(probes[place].key, probes[place].hash)) {
                proposals.add(first + place * FOLLOWERS, followers, FOLLOWERS);
                return;
            }
    }

private:
    struct Probe {
        Context key;
        uint64_t hash;
    };
    std::vector<int64_t> lengths_;
    uint64_t capacity_;
    OrderedTable<Context> known_;

    // The keys of a context of every length, whose memory is asked for at once.
    void probe(const Context& context, Probe* probes) const {
        for (size_t place = 0; place < lengths_.size(); ++place) {
            probes[place].key = shortened(context, int(lengths_[place]));
            probes[place].hash = hash_of(probes[place].key);
            known_.prefetch(probes[place].hash);
        }
    }
};
