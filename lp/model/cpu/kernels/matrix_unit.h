// Products by the matrix unit of Intel processors (AMX), for weights in bfloat16.
//
// A tile of 16 rows is multiplied even if there are fewer rows: the memory behind the last row may be read, and what
// comes of it is not used. As the unit computes each result by itself, a row's results do not depend on the others.
#pragma once

#include "numbers.h"

#if WEIGHT_FORMAT == 1 && defined(__AMX_BF16__) && defined(__linux__)
#define HAS_MATRIX_UNIT 1

#include <sys/syscall.h>
#include <unistd.h>

#define TILE_ROWS 16
#define TILE_INPUTS 32

// Asks the system for the unit, which it must allow to each process.
static bool may_use_matrix_unit() {
    const long request = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

static const bool uses_matrix_unit = may_use_matrix_unit();

// Sets up this thread's tiles: 16 rows of 64 bytes each.
static void open_matrix_unit() {
    struct {
        uint8_t palette = 1, start = 0, reserved[14] = {};
        uint16_t bytes[16] = {};
        uint8_t rows[16] = {};
    } config;
    for (int tile = 0; tile < 8; tile++) config.bytes[tile] = 64, config.rows[tile] = TILE_ROWS;
    if (uses_matrix_unit) _tile_loadconfig(&config);
}

static void close_matrix_unit() {
    if (uses_matrix_unit) _tile_release();
}

static inline void fetch_tile(const char* from) {
#pragma GCC unroll 16
    for (int line = 0; line < TILE_ROWS; line++) __builtin_prefetch(from + line * 64, 0, 2);
}

// Up to 32 rows of x, IS_PAIR if more than 16, with COLUMNS panels that lie `stride` bytes apart. sums: [32][COLUMNS *
// PANEL]. ahead: what is fetched meanwhile, null for nothing: a tile of each of as many panels, `ahead_stride` bytes
// apart, for every `every` tiles that are read.
template <bool IS_PAIR, int COLUMNS>
static void multiply_tiles(const half_t* x, long x_stride, const weight_t* panels, long stride, long num_inputs,
                           float* sums, const char* ahead, long ahead_stride, long every) {
    const long bytes = x_stride * 2, width = COLUMNS * PANEL, tile_bytes = TILE_ROWS * 64;
    const char* weights = (const char*)panels;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    long wait = 0;
    for (long k = 0; k < num_inputs; k += TILE_INPUTS, weights += tile_bytes) {
        const bool fetches = ahead && wait == 0;
        wait = wait ? wait - 1 : every - 1;
        const char* fetched = ahead;
        if (fetches) ahead += tile_bytes;
        _tile_loadd(6, x + k, bytes);
        _tile_loadd(7, weights, 64);
        _tile_dpbf16ps(0, 6, 7);
        if (fetches) fetch_tile(fetched);
        if (COLUMNS > 1) {
            _tile_loadd(7, weights + stride, 64);
            _tile_dpbf16ps(1, 6, 7);
            if (fetches) fetch_tile(fetched + ahead_stride);
        }
        if (COLUMNS > 2) {
            _tile_loadd(7, weights + 2 * stride, 64);
            _tile_dpbf16ps(2, 6, 7);
            if (fetches) fetch_tile(fetched + 2 * ahead_stride);
        }
        if (IS_PAIR) {
            _tile_loadd(6, x + TILE_ROWS * x_stride + k, bytes);
            if (COLUMNS > 2) _tile_dpbf16ps(5, 6, 7);
            if (COLUMNS > 2) _tile_loadd(7, weights + stride, 64);
            if (COLUMNS > 1) _tile_dpbf16ps(4, 6, 7);
            if (COLUMNS > 1) _tile_loadd(7, weights, 64);
            _tile_dpbf16ps(3, 6, 7);
        }
    }
    _tile_stored(0, sums, width * 4);
    if (COLUMNS > 1) _tile_stored(1, sums + PANEL, width * 4);
    if (COLUMNS > 2) _tile_stored(2, sums + 2 * PANEL, width * 4);
    if (IS_PAIR) {
        sums += TILE_ROWS * width;
        _tile_stored(3, sums, width * 4);
        if (COLUMNS > 1) _tile_stored(4, sums + PANEL, width * 4);
        if (COLUMNS > 2) _tile_stored(5, sums + 2 * PANEL, width * 4);
    }
}

#else
#define HAS_MATRIX_UNIT 0
static void open_matrix_unit() {}
static void close_matrix_unit() {}
#endif
