// A hash table that knows the order in which its keys came, like Python's dict: the oldest can be dropped.
//
// An entry is a key and `width` numbers. Entries lie in a ring in their order; `places_` finds them by their hashes.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "context.h"

// Stands for numbers that are not there. No token has this value.
constexpr int32_t NONE = INT32_MIN;

template <class Key>
class OrderedTable {
public:
    explicit OrderedTable(int width) : width_(width), stride_(sizeof(Key) / 8 + (width + 1) / 2) { rebuild(64); }

    int width() const { return width_; }
    uint64_t size() const { return newest_ - oldest_; }

    // Asks the memory for what `find` will read first.
    void prefetch(uint64_t hash) const { __builtin_prefetch(&places_[hash & (places_.size() - 1)]); }

    // The numbers of a key; null if it is not there.
    const int32_t* find(const Key& key, uint64_t hash) const {
        const uint32_t at = places_[place_of(key, hash)];
        return at ? numbers(at - 1) : nullptr;
    }

    // The numbers of a key, which is added with NONE as all its numbers if it is not there.
    int32_t* put(const Key& key, uint64_t hash) {
        uint64_t place = place_of(key, hash);
        if (places_[place]) return numbers(places_[place] - 1);
        if (size() == capacity_) {
            rebuild(2 * capacity_);
            place = place_of(key, hash);
        }
        const uint64_t at = newest_++ & (capacity_ - 1);
        places_[place] = uint32_t(at + 1);
        std::memcpy(entry(at), &key, sizeof(Key));
        for (int number = 0; number < width_; ++number) numbers(at)[number] = NONE;
        return numbers(at);
    }

    void drop_oldest() {
        const uint64_t at = oldest_++ & (capacity_ - 1), last = places_.size() - 1;
        uint64_t hole = place_of(key(at), hash_of(key(at)));
        // Entries that stand behind the hole because their own places were taken move up.
        for (uint64_t place = (hole + 1) & last; places_[place]; place = (place + 1) & last) {
            const uint64_t wanted = hash_of(key(places_[place] - 1)) & last;
            if (((place - wanted) & last) >= ((place - hole) & last)) {
                places_[hole] = places_[place];
                hole = place;
            }
        }
        places_[hole] = 0;
    }

    // Drops the keys for which `is_kept` is false. The others keep their order.
    template <class IsKept>
    void filter(IsKept is_kept) {
        OrderedTable kept(width_);
        for (uint64_t serial = oldest_; serial < newest_; ++serial) {
            const uint64_t at = serial & (capacity_ - 1);
            const Key one = key(at);
            if (is_kept(one)) std::memcpy(kept.put(one, hash_of(one)), numbers(at), sizeof(int32_t) * width_);
        }
        *this = std::move(kept);
    }

    // Copies all keys and numbers [size, width], the oldest first.
    void copy(Key* keys, int32_t* all) const {
        for (uint64_t serial = oldest_; serial < newest_; ++serial, all += width_) {
            const uint64_t at = serial & (capacity_ - 1);
            *keys++ = key(at);
            std::memcpy(all, numbers(at), sizeof(int32_t) * width_);
        }
    }

    // Gives every entry room for more numbers.
    void widen(int width) {
        OrderedTable wider(width);
        for (uint64_t serial = oldest_; serial < newest_; ++serial) {
            const uint64_t at = serial & (capacity_ - 1);
            const Key one = key(at);
            std::memcpy(wider.put(one, hash_of(one)), numbers(at), sizeof(int32_t) * width_);
        }
        *this = std::move(wider);
    }

private:
    int width_, stride_;
    uint64_t oldest_ = 0, newest_ = 0, capacity_ = 0;  // entries since the beginning; the capacity is a power of two
    std::vector<uint64_t> entries_;
    std::vector<uint32_t> places_;  // 0 is empty, else 1 + where the entry lies in the ring

    uint64_t* entry(uint64_t at) { return &entries_[at * stride_]; }
    const uint64_t* entry(uint64_t at) const { return &entries_[at * stride_]; }
    const Key& key(uint64_t at) const { return *reinterpret_cast<const Key*>(entry(at)); }
    int32_t* numbers(uint64_t at) { return reinterpret_cast<int32_t*>(entry(at) + sizeof(Key) / 8); }
    const int32_t* numbers(uint64_t at) const {
        return reinterpret_cast<const int32_t*>(entry(at) + sizeof(Key) / 8);
    }

    // Where a key stands in `places_`, or the empty place where it would.
    uint64_t place_of(const Key& wanted, uint64_t hash) const {
        const uint64_t last = places_.size() - 1;
        uint64_t place = hash & last;
        while (places_[place] && !(key(places_[place] - 1) == wanted)) place = (place + 1) & last;
        return place;
    }

    void rebuild(uint64_t capacity) {
        std::vector<uint64_t> entries(capacity * stride_);
        for (uint64_t serial = oldest_; serial < newest_; ++serial)
            std::memcpy(&entries[(serial & (capacity - 1)) * stride_], entry(serial & (capacity_ - 1)), 8 * stride_);
        entries_.swap(entries);
        capacity_ = capacity;
        places_.assign(2 * capacity, 0);
        for (uint64_t serial = oldest_; serial < newest_; ++serial) {
            const uint64_t at = serial & (capacity - 1);
            places_[place_of(key(at), hash_of(key(at)))] = uint32_t(at + 1);
        }
    }
};
