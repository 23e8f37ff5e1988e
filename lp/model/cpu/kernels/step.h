// One step: the rows of some sequences, laid out as the program runs them, and where each sequence's keys and values lie.
//
// Rows whose logits nobody asks for come first, those of all sequences; then come all others. So the rows that the last
// layer answers are the last rows of the step, and a sequence has one or two runs of rows that follow one another.
#pragma once

#include <vector>

#include "numbers.h"

// One sequence's part of a step. The cache holds `length` tokens before its rows, and has room for `capacity`. shifts:
// what is added to a row's number in its sequence to get that in the step, for rows without and with logits.
struct Sequence {
    long num_rows, num_answered, length, capacity, shifts[2];

    long num_unanswered() const { return num_rows - num_answered; }
    long row_of(long number) const { return number + shifts[number >= num_unanswered()]; }
};

// number: in its sequence. seen: where the list of the rows that it sees begins.
struct Row {
    int sequence, number;
    long seen;
};

// Rows [first, last) of the step, which follow one another in their sequence as well.
struct Run {
    long first, last, sequence;
};

// Where a state is written after the first `num_rows` rows of a sequence.
struct Stop {
    long num_rows;
    char* state;
};

// What becomes of the states of one sequence's recurrent layers: its stops, and where its last `num_left` rows leave what
// it takes to advance a state by them.
struct SequenceStates {
    long first_stop, last_stop, num_left;
    char* left;

    // at: where it lies for one row.
    char* left_of(long at) const { return left + at * num_left; }
};

// The rows of a sequence in an order in which few of their states are needed at the same time. row: in its sequence.
// from, to: the places of its parent's state, which the first row finds in place 0, and of its own.
struct Visit {
    long row, from, to;
};

// What all layers of a step share. Given are the tokens, parents and depths of each tree's rows, one tree behind the
// other, and in `stores` for each sequence the addresses of `num_layers` layers' keys and then of their values. `lay_out`
// writes the rest: row_tokens and positions, which the program reads, and all that is below them. seen: lists of the rows
// that each row sees, by their numbers in their sequence. states: for each sequence the addresses of the `num_parts` parts
// of its recurrent layers' states before the step; if there are none, nothing of states is given. only_best: whether of
// the logits of each row the highest alone must be right.
struct Step {
    long num_sequences, num_layers;
    Sequence* sequences;
    weight_t* const* stores;
    const long *tokens, *parents, *depths;
    long *row_tokens, *positions;
    long num_rows, num_answered, num_runs;
    Row* rows;
    Run* runs;
    int* seen;
    long num_parts;
    const char* const* states;
    const SequenceStates* of_states;
    const Stop* stops;
    Visit* visits;
    long only_best;

    const char* state_before(long sequence, long part) const { return states[sequence * num_parts + part]; }
    weight_t* keys(long sequence, long layer) const { return stores[sequence * 2 * num_layers + layer]; }
    weight_t* values(long sequence, long layer) const { return keys(sequence, num_layers + layer); }
    // A row sees its ancestors and itself, which is the last.
    long num_seen(long row) const { return rows[row + 1].seen - rows[row].seen; }
    const int* seen_by(long row) const { return seen + rows[row].seen; }
};

// Lays out the rows [begin, end) of a sequence, which must come after those of their parents. at: where the sequence's
// rows begin among all that are given.
static void lay_out_run(Step& step, long number, long begin, long end, long at) {
    const Sequence& sequence = step.sequences[number];
    if (begin == end) return;
    if (step.num_runs > 0 && step.runs[step.num_runs - 1].sequence == number)
        step.runs[step.num_runs - 1].last += end - begin;
    else
        step.runs[step.num_runs++] = {step.num_rows, step.num_rows + end - begin, number};
    for (long own = begin; own < end; own++) {
        const long row = step.num_rows++, parent = own > 0 ? sequence.row_of(step.parents[at + own]) : 0;
        const long num_above = own > 0 ? step.num_seen(parent) : 0;
        step.row_tokens[row] = step.tokens[at + own];
        step.positions[row] = sequence.length + step.depths[at + own];
        step.rows[row].sequence = (int)number;
        step.rows[row].number = (int)own;
        step.rows[row + 1].seen = step.rows[row].seen + num_above + 1;
        int* seen = step.seen + step.rows[row].seen;
        if (num_above > 0) memcpy(seen, step.seen_by(parent), sizeof(int) * num_above);
        seen[num_above] = (int)own;
    }
}

// Writes the visits of a sequence's rows: each row comes behind its parent, and the child with the most rows below it comes
// last and takes its parent's place. So there are no more places than the number of rows has binary digits. parents: of
// the rows. visits: of this sequence.
static void lay_out_visits(const long* parents, long num_rows, Visit* visits) {
    struct Node {
        long size, largest, begin, done, place;  // size: rows of the branch; done: of them, those that are placed
    };
    std::vector<Node> nodes(num_rows, {1, -1, 0, 1, 0});
    for (long row = num_rows - 1; row > 0; row--) {
        Node& parent = nodes[parents[row]];
        parent.size += nodes[row].size;
        if (parent.largest < 0 || nodes[row].size > nodes[parent.largest].size) parent.largest = row;
    }
    visits[0] = {0, 0, 0};
    for (long row = 1; row < num_rows; row++) {
        Node &own = nodes[row], &parent = nodes[parents[row]];
        const bool is_last = parent.largest == row;
        own.begin = parent.begin + (is_last ? parent.size - own.size : parent.done);
        own.place = parent.place + !is_last;
        if (!is_last) parent.done += own.size;
        visits[own.begin] = {row, parent.place, own.place};
    }
}

static void lay_out(Step& step) {
    step.num_rows = step.num_answered = step.num_runs = 0;
    step.rows[0].seen = 0;
    for (long n = 0, at = 0; n < step.num_sequences; at += step.sequences[n++].num_rows) {
        Sequence& one = step.sequences[n];
        one.shifts[0] = step.num_rows;
        lay_out_run(step, n, 0, one.num_unanswered(), at);
        step.num_answered += one.num_answered;
    }
    for (long n = 0, at = 0; n < step.num_sequences; at += step.sequences[n++].num_rows) {
        Sequence& one = step.sequences[n];
        one.shifts[1] = step.num_rows - one.num_unanswered();
        lay_out_run(step, n, one.num_unanswered(), one.num_rows, at);
        if (step.num_parts > 0) lay_out_visits(step.parents + at, one.num_rows, step.visits + at);
    }
}

// Writes one row's keys or values behind its sequence's prefix.
static inline void keep(bool is_key, long layer, const Step& step, long row, const float* from, long stride,
                        long num_heads, long size) {
    const Row& own = step.rows[row];
    const Sequence& sequence = step.sequences[own.sequence];
    weight_t* cache = is_key ? step.keys(own.sequence, layer) : step.values(own.sequence, layer);
    for (long head = 0; head < num_heads; head++) {
        weight_t* to = cache + (head * sequence.capacity + sequence.length + own.number) * size;
        for (long d = 0; d < size; d++) to[d] = rounded(from[head * stride + d]);
    }
}
