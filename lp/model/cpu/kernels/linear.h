// Products of rows with a packed weight: out[r][n] = bias[n] + sum over k of x[r][k] * weight[n][k].
//
// A weight is packed in panels of PANEL outputs. In a panel the inputs k follow one another (in pairs if the numbers
// are bfloat16), and each has its PANEL outputs side by side: a cache line. Few rows go through one panel after the
// other, more rows through several at a time. What is read next is fetched meanwhile, evenly, as memory is what few
// rows wait for. Every result is a sum in the order of k, whatever the number of rows, so a row's results do not depend
// on the others.
#pragma once

#include <vector>

#include "matrix_unit.h"

#define VECTORS (PANEL / LANES)  // in a panel
#if WEIGHT_FORMAT == 1
#define TOGETHER 2  // inputs that lie together
#else
#define TOGETHER 1
#endif
#if LANES == 16
#define MOST_ROWS 8             // whose sums fit the registers
#define MOST_IN_TURN MOST_ROWS  // of one of several tiles of rows
#define FEW_ROWS 1              // that go through one panel at a time
#define WIDE 3                  // panels that others go through at a time
#elif LANES == 8
#define MOST_ROWS 6
#define MOST_IN_TURN (TOGETHER == 2 ? 5 : MOST_ROWS)
#define FEW_ROWS 6
#define WIDE 1
#else
#define MOST_ROWS 2
#define MOST_IN_TURN MOST_ROWS
#define FEW_ROWS 2
#define WIDE 1
#endif

#define STEP (PANEL * TOGETHER)  // numbers of a panel for one input, or for a pair of them
#define BLOCK (96 / TOGETHER)    // inputs, or pairs, after which other rows take their turn: a third of the first cache
#define ROWS_AT_ONCE 64          // rows that go through panels before the next rows do
#define LINES_AT_ONCE 4          // cache lines that many rows fetch between two of their steps

// Where a packed weight of `num_inputs` inputs has its number for an output and an input.
static inline long packed_at(long output, long input, long num_inputs) {
    const long padded = sizeof(weight_t) == 4 ? num_inputs : (num_inputs + 31) / 32 * 32;
    return (output / PANEL * padded + input / TOGETHER * TOGETHER) * PANEL + output % PANEL * TOGETHER +
           input % TOGETHER;
}

struct Product {
    const half_t* x;
    long x_stride;
    const weight_t* weight;
    const float* bias;
    float* out;
    long num_inputs, num_outputs;

    long num_panels() const { return (num_outputs + PANEL - 1) / PANEL; }
    long num_steps() const { return (num_inputs + TOGETHER - 1) / TOGETHER; }
    long panel_size() const { return num_steps() * STEP; }
    const weight_t* panel(long number) const { return weight + number * panel_size(); }

    // The first panel of a thread's share.
    long share(long thread, long num_threads) const {
        const long num_groups = (num_panels() + WIDE - 1) / WIDE, first = num_groups * thread / num_threads * WIDE;
        return first < num_panels() ? first : num_panels();
    }
};

// At least `count` numbers of a buffer that only grows, so that it is not filled with zeros for each product.
static inline float* room_for(long count, std::vector<float>& buffer) {
    if ((long)buffer.size() < count) buffer.resize(count);
    return buffer.data();
}

// Inputs as they are multiplied: pairs as they are stored; else floats, as converting them for each panel would take
// more instructions than the products.
#if HAS_PAIRS
typedef half_t input_t;
#else
typedef float input_t;
#endif

// Rows of inputs, `stride` numbers apart.
struct InputRows {
    const input_t* numbers;
    long stride;

    // From a row and an input on.
    InputRows from(long row, long input) const { return {numbers + row * stride + input, stride}; }
};

// The inputs of rows [first, last), which stay valid until the thread calls this again.
static InputRows input_rows(const Product& product, long first, long last) {
    const half_t* x = product.x + first * product.x_stride;
    if constexpr (sizeof(input_t) == sizeof(half_t)) return {(const input_t*)x, product.x_stride};
    static thread_local std::vector<float> buffer;
    const long stride = product.num_steps() * TOGETHER;
    float* numbers = room_for((last - first) * stride, buffer);
    for (long r = 0; r < last - first; r++, x += product.x_stride) {
        float* own = numbers + r * stride;
        for (long k = 0; k < product.num_inputs; k++) own[k] = number(x[k]);
        if (stride > product.num_inputs) own[product.num_inputs] = 0;
    }
    return {(const input_t*)numbers, stride};
}

// The weights of the first or the second of the inputs that lie together, for as many outputs as a vector has lanes. A
// bfloat16 is the upper half of a float.
static inline Vector load_weights(const weight_t* from, int which) {
#if WEIGHT_FORMAT == 1
    const Integers pairs = *(const Integers*)from;
    return (Vector)(which ? pairs & (int32_t)0xffff0000 : pairs << 16);
#else
    return load_numbers(from);
#endif
}

// Panels that lie `stride` numbers apart. As what to fetch: nothing, if weights is null.
struct Panels {
    const weight_t* weights;
    long stride;
};

// Sums for each row, `stride` numbers apart.
struct Sums {
    float* numbers;
    long stride;
};

// Adds the products of `count` steps of COLUMNS panels with ROWS rows to the sums `from` and writes them to `to`. Of
// each of PANELS_AHEAD panels, AT_ONCE lines are fetched every `every` steps; one line every step if AT_ONCE is 1.
template <int ROWS, int COLUMNS, int PANELS_AHEAD, int AT_ONCE>
static void add_block(InputRows x, Panels panels, long count, Sums from, Sums to, Panels ahead, long every) {
    constexpr int WIDTH = COLUMNS * VECTORS;
    Vector acc[ROWS][WIDTH];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < WIDTH; v++) acc[r][v] = load(from.numbers + r * from.stride + v * LANES);
    const weight_t* weights = panels.weights;
    const char* fetched = (const char*)ahead.weights;
    const long stride = panels.stride, fetched_stride = ahead.stride * (long)sizeof(weight_t);
    for (long k = 0; k < count;) {
#pragma GCC unroll 4
        for (int panel = 0; panel < PANELS_AHEAD; panel++)
#pragma GCC unroll 4
            for (int line = 0; line < AT_ONCE; line++)
                __builtin_prefetch(fetched + panel * fetched_stride + line * 64, 0, 2);
        fetched += 64 * AT_ONCE;
        const long end = AT_ONCE == 1 ? k + 1 : k + every < count ? k + every : count;
        for (; k < end; k++, weights += STEP) {
#if HAS_PAIRS
            __m512bh weight[WIDTH];
#pragma GCC unroll 4
            for (int v = 0; v < WIDTH; v++) weight[v] = (__m512bh)_mm512_loadu_si512(weights + v * stride);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                int pair;
                memcpy(&pair, x.numbers + r * x.stride + 2 * k, 4);
                const __m512bh input = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 4
                for (int v = 0; v < WIDTH; v++)
                    acc[r][v] = (Vector)_mm512_dpbf16_ps((__m512)acc[r][v], input, weight[v]);
            }
#else
#pragma GCC unroll 2
            for (int i = 0; i < TOGETHER; i++) {
                Vector weight[WIDTH];
#pragma GCC unroll 4
                for (int v = 0; v < WIDTH; v++)
                    weight[v] = load_weights(weights + v / VECTORS * stride + v % VECTORS * LANES * TOGETHER, i);
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    const Vector input = broadcast(x.numbers[r * x.stride + k * TOGETHER + i]);
#pragma GCC unroll 4
                    for (int v = 0; v < WIDTH; v++) acc[r][v] = multiply_add(input, weight[v], acc[r][v]);
                }
            }
#endif
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int v = 0; v < WIDTH; v++) store(to.numbers + r * to.stride + v * LANES, acc[r][v]);
}

// The same for a number of rows that the compiler does not know, at least LEAST and at most MOST.
template <int LEAST, int MOST, int COLUMNS, int PANELS_AHEAD, int AT_ONCE>
static void add_rows(long rows, InputRows x, Panels panels, long count, Sums from, Sums to, Panels ahead, long every) {
    if (rows == MOST)
        return add_block<MOST, COLUMNS, PANELS_AHEAD, AT_ONCE>(x, panels, count, from, to, ahead, every);
    if constexpr (MOST > LEAST)
        add_rows<LEAST, MOST - 1, COLUMNS, PANELS_AHEAD, AT_ONCE>(rows, x, panels, count, from, to, ahead, every);
}

// Rows [first, last) of one panel, whose inputs are `x`.
static void multiply_panel(const Product& product, InputRows x, long panel, long first, long last, Panels ahead) {
    const long column = panel * PANEL, steps = product.num_steps();
    const long width = product.num_outputs - column < PANEL ? product.num_outputs - column : PANEL;
    alignas(64) float bias[PANEL] = {}, sums[MOST_ROWS * PANEL];
    if (product.bias) memcpy(bias, product.bias + column, width * sizeof(float));
    for (long row = first; row < last; row += MOST_ROWS, ahead = {}) {
        const long rows = last - row < MOST_ROWS ? last - row : MOST_ROWS;
        float* out = product.out + row * product.num_outputs + column;
        const Sums to = width == PANEL ? Sums{out, product.num_outputs} : Sums{sums, PANEL};
        const Panels own = {product.panel(panel), 0};
        add_rows<1, MOST_ROWS, 1, 1, 1>(rows, x.from(row - first, 0), own, steps, {bias, 0}, to,
                                        ahead.weights ? ahead : own, 1);
        if (width < PANEL)
            for (long r = 0; r < rows; r++)
                memcpy(out + r * product.num_outputs, sums + r * PANEL, width * sizeof(float));
    }
}

// One tile of rows of a block: tile number `tile` of `num_tiles`, which share the work of fetching.
static void add_tile(long tile, long num_tiles, long rows, InputRows x, Panels panels, long count, Sums from, Sums to,
                     Panels ahead) {
    if (!ahead.weights)
        return add_rows<1, MOST_IN_TURN, WIDE, 1, LINES_AT_ONCE>(rows, x, panels, count, from, to, panels, count);
    long panel = WIDE - 1, part = 0, parts = 1;
    if constexpr (WIDE > 1) {
        if (num_tiles == 1)
            return add_rows<1, MOST_ROWS, WIDE, WIDE, 1>(rows, x, panels, count, from, to, ahead, 1);
        if (num_tiles == 2 && tile == 0)
            return add_rows<MOST_ROWS / 2, MOST_ROWS, WIDE, WIDE - 1, 1>(rows, x, panels, count, from, to, ahead, 1);
    }
    // One panel is left to the second of two tiles; of more tiles, each fetches a part of one panel.
    if (WIDE == 1 || num_tiles > 2) {
        panel = tile * WIDE / num_tiles;
        const long begin = (panel * num_tiles + WIDE - 1) / WIDE, end = ((panel + 1) * num_tiles + WIDE - 1) / WIDE;
        part = tile - begin, parts = end - begin;
    }
    const Panels own = {ahead.weights + panel * ahead.stride + (count + parts - 1) / parts * part * STEP, 0};
    add_rows<1, MOST_IN_TURN, WIDE, 1, LINES_AT_ONCE>(rows, x, panels, count, from, to, own, parts * LINES_AT_ONCE);
}

// Rows [first, last), at most ROWS_AT_ONCE, of WIDE panels, whose inputs are `x`. Several tiles of rows take turns, block
// by block.
static void multiply_panels(const Product& product, InputRows x, long panel, long first, long last, Panels ahead) {
    constexpr long MOST = WIDE * PANEL;
    const long num_rows = last - first, num_tiles = (num_rows + MOST_IN_TURN - 1) / MOST_IN_TURN;
    const long num_steps = product.num_steps(), stride = product.panel_size(), column = panel * PANEL;
    const long width = product.num_outputs - column < MOST ? product.num_outputs - column : MOST;
    alignas(64) float sums[ROWS_AT_ONCE * MOST], bias[MOST] = {};
    if (product.bias) memcpy(bias, product.bias + column, width * sizeof(float));
    float* out = product.out + first * product.num_outputs + column;
    const long block_steps = num_tiles == 1 ? num_steps : BLOCK;
    for (long k = 0; k < num_steps; k += block_steps) {
        const long count = num_steps - k < block_steps ? num_steps - k : block_steps;
        const bool is_last = k + count == num_steps;
        const Panels block = {product.panel(panel) + k * STEP, stride};
        const Panels next = {block.weights + count * STEP, stride};
        for (long tile = 0, done = 0; tile < num_tiles; tile++) {
            const long rows = (num_rows - done + num_tiles - tile - 1) / (num_tiles - tile);
            const Sums own = {sums + done * MOST, MOST};
            const Sums whole = {out + done * product.num_outputs, product.num_outputs};
            add_tile(tile, num_tiles, rows, x.from(done, k * TOGETHER), block, count, k ? own : Sums{bias, 0},
                     is_last && width == MOST ? whole : own, is_last || !ahead.weights ? ahead : next);
            done += rows;
        }
    }
    if (width < MOST)
        for (long r = 0; r < num_rows; r++)
            memcpy(out + r * product.num_outputs, sums + r * MOST, width * sizeof(float));
}

#if HAS_MATRIX_UNIT
// Rows of COLUMNS panels by the matrix unit.
template <int COLUMNS>
static void multiply_panels_by_tiles(const Product& product, long panel, long first, long last, Panels ahead) {
    const long column = panel * PANEL, stride = product.panel_size() * 2, ahead_stride = ahead.stride * 2;
    const long width = product.num_outputs - column < COLUMNS * PANEL ? product.num_outputs - column : COLUMNS * PANEL;
    const long num_chunks = (last - first + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS);
    const long share = (product.num_inputs / TILE_INPUTS + num_chunks - 1) / num_chunks * TILE_ROWS * STEP;
    const weight_t* weights = product.panel(panel);
    alignas(64) float sums[2 * TILE_ROWS * COLUMNS * PANEL], bias[COLUMNS * PANEL] = {};
    if (product.bias) memcpy(bias, product.bias + column, width * sizeof(float));
    for (long row = first; row < last; row += 2 * TILE_ROWS, ahead.weights += share) {
        const long rows = last - row < 2 * TILE_ROWS ? last - row : 2 * TILE_ROWS;
        const half_t* x = product.x + row * product.x_stride;
        const char* fetched = (const char*)ahead.weights;
        if (rows > TILE_ROWS)
            multiply_tiles<true, COLUMNS>(x, product.x_stride, weights, stride, product.num_inputs, sums, fetched,
                                          ahead_stride, num_chunks);
        else
            multiply_tiles<false, COLUMNS>(x, product.x_stride, weights, stride, product.num_inputs, sums, fetched,
                                           ahead_stride, num_chunks);
        for (long r = 0; r < rows; r++) {
            float* to = product.out + (row + r) * product.num_outputs + column;
            const float* from = sums + r * COLUMNS * PANEL;
            if (width == COLUMNS * PANEL)
                for (long n = 0; n < COLUMNS * PANEL; n++) to[n] = from[n] + bias[n];
            else
                for (long n = 0; n < width; n++) to[n] = from[n] + bias[n];
        }
    }
}

// Panels [begin, end).
static void multiply_by_tiles(const Product& product, long begin, long end, long first, long last, Panels after) {
    const long stride = product.panel_size();
    long panel = begin;
    for (; panel + 3 <= end; panel += 3)
        multiply_panels_by_tiles<3>(product, panel, first, last,
                                    panel + 3 < end ? Panels{product.panel(panel + 3), stride} : after);
    for (; panel < end; panel++)
        multiply_panels_by_tiles<1>(product, panel, first, last,
                                    panel + 1 < end ? Panels{product.panel(panel + 1), stride} : after);
}
#endif

// The share of one of `num_threads` threads: some of the panels, all rows. next: the product that comes after it.
static void multiply(const Product& product, const Product& next, long first, long last, long thread,
                     long num_threads) {
    const long begin = product.share(thread, num_threads), end = product.share(thread + 1, num_threads);
    const Panels after = {next.panel(next.share(thread, num_threads)), next.panel_size()};
    const long stride = product.panel_size();
#if HAS_MATRIX_UNIT
    if (uses_matrix_unit) return multiply_by_tiles(product, begin, end, first, last, after);
#endif
    const InputRows x = input_rows(product, first, last);
    long panel = begin;
    for (; last - first > FEW_ROWS && panel + WIDE <= end; panel += WIDE) {
        Panels ahead = panel + WIDE < end ? Panels{product.panel(panel + WIDE), stride} : after;
        for (long row = first; row < last; row += ROWS_AT_ONCE, ahead = {})
            multiply_panels(product, x.from(row - first, 0), panel, row,
                            last < row + ROWS_AT_ONCE ? last : row + ROWS_AT_ONCE, ahead);
    }
    for (; panel < end; panel++)
        multiply_panel(product, x, panel, first, last,
                       panel + 1 < end ? Panels{product.panel(panel + 1), stride} : after);
}
