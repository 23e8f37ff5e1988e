// One step: the rows of some sequences, laid out as the program runs them, and where each sequence's keys and values lie.
//
// Rows whose logits nobody asks for come first, those of all sequences; then come all others. So the rows that the last
// layer answers are the last rows of the step, and a sequence has one or two runs of rows that follow one another.
#pragma once

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

// What all layers of a step share. Given are the tokens, parents and depths of each tree's rows, one tree behind the
// other, and in `stores` for each sequence the addresses of `num_layers` layers' keys and then of their values. `lay_out`
// writes the rest: row_tokens and positions, which the program reads, and all that is below them. seen: lists of the rows
// that each row sees, by their numbers in their sequence.
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
    }
}
