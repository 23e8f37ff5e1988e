// Products of rows with a packed weight: out[r][n] = bias[n] + sum over k of x[r][k] * weight[n][k].
//
// A weight is packed in panels of PANEL outputs. In a panel the inputs k follow one another (in pairs if the numbers
// are bfloat16), and each has its PANEL outputs side by side. So a panel is read from its beginning to its end, and
// what comes next is fetched meanwhile. Every result is a sum in the order of k, whatever the number of rows, so a
// row's results do not depend on the others.
#pragma once

#include "matrix_unit.h"

#if LANES == 16
#define VECTORS 3    // in a panel
#define MOST_ROWS 8  // whose sums fit the registers
#elif LANES == 8
#define VECTORS 2
#define MOST_ROWS 6
#else
#define VECTORS 4
#define MOST_ROWS 4
#endif
#define PANEL (VECTORS * LANES)

#if WEIGHT_FORMAT == 1
#define TOGETHER 2  // inputs that lie together
#else
#define TOGETHER 1
#endif
#define BLOCK (128 / TOGETHER)  // inputs, or pairs of them, after which other rows take their turn
#define ROWS_AT_ONCE 64         // rows that go through a panel before the next rows do
#define LINES_OF_INPUT ((PANEL * TOGETHER * (int)sizeof(weight_t) + 63) / 64)
// Cache lines that the first and the second of several tiles fetch for each input.
#define LINES_FIRST (LINES_OF_INPUT < 2 ? LINES_OF_INPUT : 2)
#define LINES_SECOND (LINES_OF_INPUT - LINES_FIRST)

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
};

// The products of one block of a panel with ROWS rows are added to sums. LINES: how many cache lines to fetch for each
// input, from `ahead` on.
template <int ROWS, int LINES>
static void add_block(const half_t* x, long x_stride, const weight_t* panel, long num_blocks_inputs, float* sums,
                      const char* ahead) {
    Vector acc[ROWS][VECTORS];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) acc[r][v] = load(sums + r * PANEL + v * LANES);
    for (long k = 0; k < num_blocks_inputs; k++) {
        for (int line = 0; line < LINES; line++) __builtin_prefetch(ahead + (k * LINES + line) * 64, 0, 2);
#if TOGETHER == 1
        Vector weights[VECTORS];
        for (int v = 0; v < VECTORS; v++) weights[v] = load_numbers(panel + k * PANEL + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const Vector input = broadcast(number(x[r * x_stride + k]));
            for (int v = 0; v < VECTORS; v++) acc[r][v] = multiply_add(input, weights[v], acc[r][v]);
        }
#elif defined(__AVX512BF16__)
        __m512bh weights[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            weights[v] = (__m512bh)_mm512_loadu_si512(panel + (k * PANEL + v * LANES) * 2);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            int pair;
            memcpy(&pair, x + r * x_stride + 2 * k, 4);
            const __m512bh input = (__m512bh)_mm512_set1_epi32(pair);
            for (int v = 0; v < VECTORS; v++)
                acc[r][v] = (Vector)_mm512_dpbf16_ps((__m512)acc[r][v], input, weights[v]);
        }
#else
        Vector even[VECTORS], odd[VECTORS];
        for (int v = 0; v < VECTORS; v++) load_pairs(panel + (k * PANEL + v * LANES) * 2, even[v], odd[v]);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            const Vector first = broadcast(number(x[r * x_stride + 2 * k]));
            const Vector second = broadcast(number(x[r * x_stride + 2 * k + 1]));
            for (int v = 0; v < VECTORS; v++) {
                acc[r][v] = multiply_add(first, even[v], acc[r][v]);
                acc[r][v] = multiply_add(second, odd[v], acc[r][v]);
            }
        }
#endif
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) store(sums + r * PANEL + v * LANES, acc[r][v]);
}

template <int LINES>
static inline void add_rows(int rows, const half_t* x, long x_stride, const weight_t* panel, long count, float* sums,
                            const char* ahead) {
    switch (rows) {
        case 1: return add_block<1, LINES>(x, x_stride, panel, count, sums, ahead);
        case 2: return add_block<2, LINES>(x, x_stride, panel, count, sums, ahead);
        case 3: return add_block<3, LINES>(x, x_stride, panel, count, sums, ahead);
        case 4: return add_block<4, LINES>(x, x_stride, panel, count, sums, ahead);
#if MOST_ROWS > 4
        case 5: return add_block<5, LINES>(x, x_stride, panel, count, sums, ahead);
        case 6: return add_block<6, LINES>(x, x_stride, panel, count, sums, ahead);
#endif
#if MOST_ROWS > 6
        case 7: return add_block<7, LINES>(x, x_stride, panel, count, sums, ahead);
        case 8: return add_block<8, LINES>(x, x_stride, panel, count, sums, ahead);
#endif
    }
}

#if HAS_MATRIX_UNIT
// The same by the matrix unit.
static void multiply_panel_by_tiles(const Product& product, long panel_number, long first, long last) {
    const weight_t* panel = product.weight + panel_number * product.num_inputs * PANEL;
    const char* ahead = (const char*)(panel + product.num_inputs * PANEL);
    const long column = panel_number * PANEL;
    const long width = product.num_outputs - column < PANEL ? product.num_outputs - column : PANEL;
    alignas(64) float sums[2 * TILE_ROWS * PANEL];
    for (long row = first; row < last; row += 2 * TILE_ROWS, ahead = nullptr) {
        const long num_rows = last - row < 2 * TILE_ROWS ? last - row : 2 * TILE_ROWS;
        const half_t* x = product.x + row * product.x_stride;
        if (num_rows > TILE_ROWS)
            multiply_tiles<true>(x, product.x_stride, panel, product.num_inputs, sums, ahead);
        else
            multiply_tiles<false>(x, product.x_stride, panel, product.num_inputs, sums, ahead);
        for (long r = 0; r < num_rows; r++) {
            float* to = product.out + (row + r) * product.num_outputs + column;
            for (long n = 0; n < width; n++)
                to[n] = sums[r * PANEL + n] + (product.bias ? product.bias[column + n] : 0.0f);
        }
    }
}
#endif

// Rows [first, last) of one panel, whose outputs begin at `column`.
static void multiply_panel(const Product& product, long panel_number, long first, long last) {
    const long num_steps = (product.num_inputs + TOGETHER - 1) / TOGETHER;
    const long num_rows = last - first, num_tiles = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
    const weight_t* panel = product.weight + panel_number * num_steps * PANEL * TOGETHER;
    const long column = panel_number * PANEL;
    const long width = product.num_outputs - column < PANEL ? product.num_outputs - column : PANEL;
    alignas(64) float sums[ROWS_AT_ONCE * PANEL];
    for (long r = 0; r < num_rows; r++)
        for (long n = 0; n < PANEL; n++)
            sums[r * PANEL + n] = product.bias && n < width ? product.bias[column + n] : 0.0f;
    // Two tiles take turns, block by block, as memory is what they wait for; more tiles go through the whole panel
    // each, as it then pays to keep their sums in registers.
    const long block_steps = num_tiles == 2 ? BLOCK : num_steps;
    for (long k = 0; k < num_steps; k += block_steps) {
        const long count = num_steps - k < block_steps ? num_steps - k : block_steps;
        const weight_t* block = panel + k * PANEL * TOGETHER;
        const char* next = (const char*)(block + count * PANEL * TOGETHER);
        long done = 0;
        for (long tile = 0; tile < num_tiles; tile++) {
            const long rows = (num_rows - done + num_tiles - tile - 1) / (num_tiles - tile);
            const half_t* x = product.x + (first + done) * product.x_stride + k * TOGETHER;
            float* to = sums + done * PANEL;
            if (num_tiles == 1)
                add_rows<LINES_OF_INPUT>(rows, x, product.x_stride, block, count, to, next);
            else if (num_tiles == 2 && tile == 0)
                add_rows<LINES_FIRST>(rows, x, product.x_stride, block, count, to, next);
            else if (num_tiles == 2)
                add_rows<LINES_SECOND>(rows, x, product.x_stride, block, count, to, next + LINES_FIRST * count * 64);
            else if (tile < LINES_OF_INPUT)
                add_rows<1>(rows, x, product.x_stride, block, count, to, next + tile * count * 64);
            else
                add_rows<0>(rows, x, product.x_stride, block, count, to, next);
            done += rows;
        }
    }
    for (long r = 0; r < num_rows; r++)
        memcpy(product.out + (first + r) * product.num_outputs + column, sums + r * PANEL, width * sizeof(float));
}

// The share of one of `num_threads` threads: some of the panels, all rows.
static void multiply(const Product& product, long first, long last, long thread, long num_threads) {
    const long num_panels = (product.num_outputs + PANEL - 1) / PANEL;
    const long begin = num_panels * thread / num_threads, end = num_panels * (thread + 1) / num_threads;
#if HAS_MATRIX_UNIT
    if (uses_matrix_unit) {
        for (long panel = begin; panel < end; panel++) multiply_panel_by_tiles(product, panel, first, last);
        return;
    }
#endif
    for (long panel = begin; panel < end; panel++)
        for (long row = first; row < last; row += ROWS_AT_ONCE)
            multiply_panel(product, panel, row, last < row + ROWS_AT_ONCE ? last : row + ROWS_AT_ONCE);
}
