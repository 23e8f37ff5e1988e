// The end of a text, as in lp/drafting/ngrams.py: a digit for each of the last LONGEST tokens.
//
// Three digits lie in a word, those of the last three tokens in the first word.
#pragma once

#include <cstdint>

constexpr int BITS = 21, OFFSET = 2, LONGEST = 8, WORDS = 3, IN_A_WORD = 3;
constexpr int64_t NO_TOKEN = -1;

constexpr uint64_t digits(int count) { return (uint64_t(1) << BITS * count) - 1; }

struct Context {
    uint64_t words[WORDS];

    bool operator==(const Context& other) const {
        return words[0] == other.words[0] && words[1] == other.words[1] && words[2] == other.words[2];
    }
    uint64_t pair() const { return words[0] & digits(2); }
    uint64_t token() const { return words[0] & digits(1); }
};

// The context after one more token.
inline Context extended(const Context& context, int64_t token) {
    const int last = BITS * (IN_A_WORD - 1);
    Context longer;
    longer.words[0] = (context.words[0] << BITS | uint64_t(token + OFFSET)) & digits(3);
    longer.words[1] = (context.words[1] << BITS | context.words[0] >> last) & digits(3);
    longer.words[2] = (context.words[2] << BITS | context.words[1] >> last) & digits(LONGEST - 2 * IN_A_WORD);
    return longer;
}

// The context of the last `length` tokens alone.
inline Context shortened(const Context& context, int length) {
    Context shorter;
    for (int word = 0; word < WORDS; ++word) {
        const int kept = length - IN_A_WORD * word;
        shorter.words[word] = context.words[word] & digits(kept < 0 ? 0 : kept > IN_A_WORD ? IN_A_WORD : kept);
    }
    return shorter;
}

// The context in which a text of `count` tokens ends.
inline Context context_of(const int64_t* tokens, int64_t count) {
    Context context{};
    for (int before = 0; before < LONGEST; ++before) context = extended(context, NO_TOKEN);
    for (int64_t at = count > LONGEST ? count - LONGEST : 0; at < count; ++at) context = extended(context, tokens[at]);
    return context;
}

inline uint64_t mixed(uint64_t one, uint64_t two) {
    const unsigned __int128 product = (unsigned __int128)(one ^ 0x9E3779B97F4A7C15) * (two ^ 0xD6E8FEB86659FD93);
    return uint64_t(product) ^ uint64_t(product >> 64);
}

inline uint64_t hash_of(uint64_t key) { return mixed(key, 0); }
inline uint64_t hash_of(const Context& key) { return mixed(key.words[0], mixed(key.words[1], key.words[2])); }
