// The functions that Python calls: lp/tree.py, lp/drafting/drafter.py, the forwards and the exchange between ranks.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "best.h"
#include "budget.h"
#include "callable.h"
#include "drafts.h"
#include "drawn.h"
#include "exchange.h"
#include "noise.h"
#include "partition.h"
#include "rows.h"
#include "step.h"
#include "tree.h"
#include "truncated.h"

namespace {

// Of arrays.
const void* array_address(PyObject* array) { return array_of(array).data; }

// Of trees.

// Returns the number of levels below the root; their rows go to `rows`, the number of rows of each to `sizes`.
int64_t tree_verify(const int64_t* tokens, const int64_t* parents, int64_t num_rows, const int64_t* targets,
                    int64_t num_verified, int64_t* rows, int64_t* sizes) {
    Levels levels;
    verify({tokens, parents, num_rows}, targets, num_verified, levels);
    std::copy(levels.rows.begin(), levels.rows.end(), rows);
    std::copy(levels.sizes.begin(), levels.sizes.end(), sizes);
    return levels.count();
}

int64_t tree_follow(const int64_t* tokens, const int64_t* parents, int64_t num_rows, const int64_t* wanted,
                    int64_t num_wanted, int64_t* path) {
    return follow({tokens, parents, num_rows}, wanted, num_wanted, path);
}

void tree_visibility(const int64_t* parents, int64_t num_rows, uint8_t* seen) { visibility(parents, num_rows, seen); }

// trunks: a list of a number for each part. Returns a list of the rows of each part.
PyObject* tree_split(const int64_t* parents, const int64_t* depths, int64_t num_rows, PyObject* trunks) {
    const int64_t* given = numbers_of(trunks);
    const auto parts = split({nullptr, parents, num_rows}, depths, {given, given + PyList_Size(trunks)});
    PyObject* lists = PyList_New(parts.size());
    for (size_t part = 0; lists && part < parts.size(); ++part)
        PyList_SetItem(lists, part, list_of(parts[part].data(), parts[part].size()));
    return lists;
}

// wanted, part: lists of tokens and of rows. How many of the tokens that follow the first row are in the part.
int64_t tree_follow_part(const int64_t* tokens, const int64_t* parents, int64_t num_rows, PyObject* wanted,
                         PyObject* part) {
    const ptrdiff_t num_wanted = PyList_Size(wanted), num_part = PyList_Size(part);
    std::vector<bool> is_in(num_rows);
    const int64_t* rows = numbers_of(part);
    for (ptrdiff_t at = 0; at < num_part; ++at) is_in[rows[at]] = true;
    return follow_part({tokens, parents, num_rows}, numbers_of(wanted), num_wanted, is_in);
}

// Of scores, whose rows follow one another. tokens, values: [num_rows][num_best]. are_numbers: of each row.
void scores_best(const float* scores, int64_t num_rows, int64_t vocab_size, int64_t num_best, int64_t* tokens,
                 float* values, bool* are_numbers) {
    for (int64_t row = 0; row < num_rows; ++row)
        are_numbers[row] = find_best(scores + row * vocab_size, vocab_size,
                                     {num_best, tokens + row * num_best, values + row * num_best});
}

// The same without values, into an array of int32: [num_rows][num_best]. A row with a NaN gets NOT_A_TOKEN.
void scores_best_tokens(const float* scores, int64_t num_rows, int64_t vocab_size, int64_t num_best, PyObject* tokens) {
    int32_t* out = data_of<int32_t>(tokens);
    std::vector<int64_t> found(num_best);
    std::vector<float> values(num_best);
    for (int64_t row = 0; row < num_rows; ++row) {
        const bool are_numbers =
            find_best(scores + row * vocab_size, vocab_size, {num_best, found.data(), values.data()});
        for (int64_t place = 0; place < num_best; ++place) *out++ = are_numbers ? int32_t(found[place]) : NOT_A_TOKEN;
    }
}

void* drawn_new(int64_t vocab_size) { return new DrawnFinder(vocab_size); }

// choices: an array, of the rows. tokens: [num_rows][num_best]. are_sure: of each row, see DrawnFinder.
void drawn_find(void* finder, const float* scores, int64_t num_rows, int64_t vocab_size, PyObject* choices,
                int64_t num_best, int64_t* tokens, bool* are_sure) {
    const Choice* how = data_of<Choice>(choices);
    for (int64_t row = 0; row < num_rows; ++row)
        are_sure[row] = static_cast<DrawnFinder*>(finder)->find(scores + row * vocab_size, how[row], num_best,
                                                                tokens + row * num_best);
}

// The same of rows with top-k, top-p or min-p, into arrays. are_sure: of each row, see find_truncated.
void truncated_find(const float* scores, int64_t num_rows, int64_t vocab_size, PyObject* choices, int64_t num_best,
                    int64_t num_tokens, PyObject* tokens, PyObject* are_sure) {
    const Choice* how = data_of<Choice>(choices);
    for (int64_t row = 0; row < num_rows; ++row)
        data_of<bool>(are_sure)[row] = find_truncated(scores + row * vocab_size, vocab_size, how[row], num_best,
                                                      num_tokens, data_of<int32_t>(tokens) + row * num_tokens);
}

// Of a step's budget.
void budget_share_out(const double* odds, const int64_t* sizes, int64_t load, const double* row_s, const double* curve,
                      double host_s, int64_t* counts) {
    share_out(odds, sizes, load, row_s, curve, host_s, counts);
}

// Of what a forward and a sampler read.

// choices, positions: arrays.
void step_draw(const int64_t* depths, int64_t num_rows, int64_t length, int64_t seed, PyObject* choices,
               PyObject* positions) {
    draw(depths, num_rows, length, uint64_t(seed), data_of<Choice>(choices), data_of<int64_t>(positions));
}

// given: a list of the numbers in `count` PagedRows, then the pages, the moves, and those in `num_chosen` RowChoices.
void step_fill(const StepMemory* to, PyObject* given, int64_t count, int64_t num_pages, int64_t num_chosen) {
    fill(*to, reinterpret_cast<const PagedRows*>(numbers_of(given)), count, num_pages, num_chosen);
}
// given: a list of the numbers in `count` StoredRows.
int64_t step_gather(PyObject* given, int64_t count, int64_t num_rows, int64_t num_stores, int64_t* numbers,
                    int64_t* inputs, int64_t* stores) {
    const auto* rows = reinterpret_cast<const StoredRows*>(numbers_of(given));
    return gather(rows, count, num_rows, num_stores, numbers, inputs, stores);
}

// Of what sequences share.

void* followers_new(const int64_t* lengths, int64_t num_lengths, int64_t capacity) {
    return new Followers(lengths, num_lengths, capacity);
}
void followers_free(void* followers) { delete static_cast<Followers*>(followers); }
int64_t followers_size(void* followers) { return int64_t(static_cast<Followers*>(followers)->size()); }
// `before`: the text before the tokens, as far as it is known.
void followers_add_text(void* followers, const int64_t* before, int64_t num_before, const int64_t* tokens,
                        int64_t count) {
    static_cast<Followers*>(followers)->add_text(context_of(before, num_before), tokens, count);
}

void* answers_new(int64_t capacity) { return new NewestAnswers(capacity); }
void answers_free(void* answers) { delete static_cast<NewestAnswers*>(answers); }
// The tables of answers after one token and after two.
const AnswerTable& table_of(void* answers, int64_t num_tokens) {
    const auto* newest = static_cast<NewestAnswers*>(answers);
    return num_tokens == 1 ? newest->tokens : newest->pairs;
}
int64_t answers_size(void* answers, int64_t num_tokens) { return int64_t(table_of(answers, num_tokens).size()); }
int64_t answers_width(void* answers, int64_t num_tokens) { return table_of(answers, num_tokens).width(); }
void answers_copy(void* answers, int64_t num_tokens, uint64_t* keys, int32_t* candidates) {
    table_of(answers, num_tokens).copy(keys, candidates);
}

// keys: contexts of two tokens [P] and of one [T]. Their answers: [P, K] and [T, K].
void* fixed_new(const uint64_t* pairs, const int32_t* pair_answers, int64_t num_pairs, int64_t pair_width,
                const uint64_t* tokens, const int32_t* token_answers, int64_t num_tokens, int64_t token_width) {
    auto* fixed = new FixedAnswers;
    // One by one, since of equal keys the last counts.
    for (int64_t at = 0; at < num_pairs; ++at)
        fixed->pairs.put(pairs + at, pair_answers + at * pair_width, 1, int(pair_width), nullptr, 0);
    for (int64_t at = 0; at < num_tokens; ++at)
        fixed->tokens.put(tokens + at, token_answers + at * token_width, 1, int(token_width), nullptr, 0);
    return fixed;
}
void fixed_free(void* fixed) { delete static_cast<FixedAnswers*>(fixed); }

// Of the drafts of a sequence.

void* drafts_new(const Shared* shared, const InUse* in_use, const Sizes* sizes, const Cost* cost) {
    return new Drafts(*shared, *in_use, *sizes, *cost);
}
void drafts_free(void* drafts) { delete static_cast<Drafts*>(drafts); }
Figures* drafts_figures(void* drafts) { return &static_cast<Drafts*>(drafts)->figures; }

void drafts_move_to(void* drafts, int64_t position, const int64_t* tokens, int64_t count) {
    static_cast<Drafts*>(drafts)->move_to(position, tokens, count);
}
void drafts_learn_text(void* drafts, const int64_t* tokens, int64_t count) {
    static_cast<Drafts*>(drafts)->learn_text(tokens, count);
}
void drafts_learn_ngrams(void* drafts, const int64_t* ngrams, int64_t count, int64_t length) {
    static_cast<Drafts*>(drafts)->learn_ngrams(ngrams, count, length);
}
void drafts_watch(void* drafts) { static_cast<Drafts*>(drafts)->watch(); }
int64_t drafts_grow(void* drafts, int64_t max_depth, int64_t num_cells, int64_t num_levels, double limit_s) {
    return static_cast<Drafts*>(drafts)->grow({max_depth, num_cells, limit_s}, num_levels);
}
int64_t drafts_offer(void* drafts, int64_t max_depth, int64_t most_rows, double least) {
    return static_cast<Drafts*>(drafts)->offer(max_depth, most_rows, least);
}
void drafts_take(void* drafts, int64_t num_nodes, int64_t num_cells, int64_t num_levels) {
    static_cast<Drafts*>(drafts)->take(num_nodes, num_cells, num_levels);
}
int64_t drafts_keep(void* drafts, const int64_t* rows, int64_t count) {
    return static_cast<Drafts*>(drafts)->keep(rows, count);
}
// answers: a numpy array, int32 [R] targets or [R, K] candidates. The others: see Terms. Returns what was accepted, and the
// number of rows of the root and the drafts of the next tree; 0 if none was planned.
PyObject* drafts_go_on(void* drafts, int64_t room, int64_t wanted, double funds, double loss_s, double spent,
                       int64_t has_candidates, PyObject* answers) {
    const Array& given = array_of(answers);
    auto* one = static_cast<Drafts*>(drafts);
    one->commit(given.data, given.strides[0], has_candidates);
    return one->accepted(one->plan_after({room, wanted, funds, loss_s, spent}));
}

void drafts_inputs(void* drafts, int64_t cached, int64_t* packed) {
    static_cast<Drafts*>(drafts)->inputs(cached, packed);
}

// The likeliest proposal for the token after the root: its kind and its token. Returns whether there is one.
int64_t drafts_likeliest(void* drafts, int64_t* kind, int64_t* token) {
    const auto* one = static_cast<Drafts*>(drafts);
    const Proposal* found = one->likeliest();
    if (!found) return 0;
    *kind = found->kind;
    *token = *one->proposals().candidates(*found);
    return 1;
}

// What is proposed to follow a path of `count` tokens that ends `depth` tokens below the root. The lists go to `lists`:
// of each the kind, the number of candidates and the candidates. Returns the number of integers.
int64_t drafts_propose(void* drafts, const int64_t* path, int64_t count, int64_t depth, int64_t* lists) {
    Proposals proposals;
    static_cast<Drafts*>(drafts)->propose(context_of(path, count), depth, proposals);
    proposals.end_row();
    int64_t* next = lists;
    for (const Proposal* list = proposals.begin(0); list != proposals.end(0); ++list) {
        *next++ = list->kind;
        *next++ = list->count;
        next = std::copy_n(proposals.candidates(*list), list->count, next);
    }
    return next - lists;
}

// Of the exchange between ranks.

void* mailbox_new(char* slots, int64_t slot_bytes, int64_t rank, int64_t num_ranks, int64_t spins) {
    return new Mailbox{slots, slot_bytes, rank, num_ranks, spins};
}
void mailbox_free(void* mailbox) { delete static_cast<Mailbox*>(mailbox); }
// Waits for a round's messages of all ranks. Returns as mailbox_gather.
int64_t mailbox_await(const Mailbox& own, int64_t round, int64_t num_bytes, int64_t limit_us) {
    if (!own.have_arrived(round)) {
        void* state = PyEval_SaveThread();
        const int64_t missing = own.await(round, limit_us);
        PyEval_RestoreThread(state);
        if (missing >= 0) return missing;
    }
    return own.check(round, num_bytes);
}
// mine, out: arrays; mine is None to go on waiting. Returns -1 if all is there, the number of a rank that has not arrived
// in time, or -2 - r if rank r has sent something else.
int64_t mailbox_gather(void* mailbox, int64_t round, PyObject* mine, PyObject* out, int64_t num_bytes,
                       int64_t limit_us) {
    const Mailbox& own = *static_cast<Mailbox*>(mailbox);
    if (mine != &_Py_NoneStruct)
        own.publish(round, num_bytes, [&](char* part) { memcpy(part, array_of(mine).data, num_bytes); });
    const int64_t state = mailbox_await(own, round, num_bytes, limit_us);
    if (state == -1)
        for (int64_t of = 0; of < own.num_ranks; ++of)
            memcpy(data_of<char>(out) + of * num_bytes, own.slot(of, round).part(), num_bytes);
    return state;
}
// As mailbox_gather, with two integers ahead of the rows of tables: parallel/comm/rows.py. mine: a list of arrays, int32
// [rows, C]; None to go on waiting. tables: a list of Table. headers: array, int32 [N, 2]. ranks_per_replica: neighbouring
// ranks that send the same.
int64_t mailbox_gather_rows(void* mailbox, int64_t round, int64_t first, int64_t second, PyObject* mine,
                            PyObject* tables, PyObject* headers, int64_t ranks_per_replica, int64_t num_bytes,
                            int64_t limit_us) {
    const Mailbox& own = *static_cast<Mailbox*>(mailbox);
    if (mine != &_Py_NoneStruct)
        own.publish(round, num_bytes, [&](char* part) {
            int32_t* next = reinterpret_cast<int32_t*>(part);
            *next++ = int32_t(first);
            *next++ = int32_t(second);
            next = write_rows(mine, next);
            memset(next, 0, part + num_bytes - reinterpret_cast<char*>(next));
        });
    const int64_t state = mailbox_await(own, round, num_bytes, limit_us);
    if (state != -1) return state;
    std::vector<const int32_t*> parts;
    for (int64_t of = 0; of < own.num_ranks; ++of) {
        const int32_t* part = reinterpret_cast<const int32_t*>(own.slot(of, round).part());
        std::copy_n(part, 2, data_of<int32_t>(headers) + 2 * of);
        if (of % ranks_per_replica == 0) parts.push_back(part + 2);
    }
    fill_tables(tables, parts);
    return -1;
}

PyMethodDef functions[] = {
    callable<mailbox_new>("mailbox_new"),
    callable<mailbox_free>("mailbox_free"),
    callable<mailbox_gather>("mailbox_gather"),
    callable<mailbox_gather_rows>("mailbox_gather_rows"),
    callable<array_address>("array_address"),
    callable<tree_verify>("tree_verify"),
    callable<tree_follow>("tree_follow"),
    callable<tree_visibility>("tree_visibility"),
    callable<tree_split>("tree_split"),
    callable<tree_follow_part>("tree_follow_part"),
    callable<scores_best>("scores_best"),
    callable<scores_best_tokens>("scores_best_tokens"),
    callable<drawn_new>("drawn_new"),
    callable<drawn_find>("drawn_find"),
    callable<truncated_find>("truncated_find"),
    callable<budget_share_out>("budget_share_out"),
    callable<step_draw>("step_draw"),
    callable<step_fill>("step_fill"),
    callable<step_gather>("step_gather"),
    callable<followers_new>("followers_new"),
    callable<followers_free>("followers_free"),
    callable<followers_size>("followers_size"),
    callable<followers_add_text>("followers_add_text"),
    callable<answers_new>("answers_new"),
    callable<answers_free>("answers_free"),
    callable<answers_size>("answers_size"),
    callable<answers_width>("answers_width"),
    callable<answers_copy>("answers_copy"),
    callable<fixed_new>("fixed_new"),
    callable<fixed_free>("fixed_free"),
    callable<drafts_new>("drafts_new"),
    callable<drafts_free>("drafts_free"),
    callable<drafts_figures>("drafts_figures"),
    callable<drafts_move_to>("drafts_move_to"),
    callable<drafts_learn_text>("drafts_learn_text"),
    callable<drafts_learn_ngrams>("drafts_learn_ngrams"),
    callable<drafts_watch>("drafts_watch"),
    callable<drafts_grow>("drafts_grow"),
    callable<drafts_offer>("drafts_offer"),
    callable<drafts_take>("drafts_take"),
    callable<drafts_keep>("drafts_keep"),
    callable<drafts_go_on>("drafts_go_on"),
    callable<drafts_inputs>("drafts_inputs"),
    callable<drafts_likeliest>("drafts_likeliest"),
    callable<drafts_propose>("drafts_propose"),
};

}  // namespace

// All functions above, by their names.
extern "C" PyObject* host_functions() { return dict_of(functions); }
