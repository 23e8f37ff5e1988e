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
#define TILE_OUTPUTS 16
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

// Up to 32 rows of x, IS_PAIR if more than 16, with a panel of 48 outputs. sums: [32][48]. ahead: fetched meanwhile, a
// line for each line of the panel; null to fetch nothing.
template <bool IS_PAIR>
static void multiply_tiles(const half_t* x, long x_stride, const weight_t* panel, long num_inputs, float* sums,
                           const char* ahead) {
    const long stride = x_stride * 2, panel_stride = 3 * TILE_OUTPUTS * 4, width = 3 * TILE_OUTPUTS;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (long k = 0; k < num_inputs; k += TILE_INPUTS) {
        const char* weights = (const char*)(panel + k * width);
        if (ahead)
            for (long line = 0; line < 3 * TILE_ROWS; line++)
                __builtin_prefetch(ahead + k * width * 2 + line * 64, 0, 2);
        _tile_loadd(6, x + k, stride);
        _tile_loadd(7, weights, panel_stride);
        _tile_dpbf16ps(0, 6, 7);
        _tile_loadd(7, weights + 64, panel_stride);
        _tile_dpbf16ps(1, 6, 7);
        _tile_loadd(7, weights + 128, panel_stride);
        _tile_dpbf16ps(2, 6, 7);
        if (IS_PAIR) {
            _tile_loadd(6, x + TILE_ROWS * x_stride + k, stride);
            _tile_dpbf16ps(5, 6, 7);
            _tile_loadd(7, weights + 64, panel_stride);
            _tile_dpbf16ps(4, 6, 7);
            _tile_loadd(7, weights, panel_stride);
            _tile_dpbf16ps(3, 6, 7);
        }
    }
    _tile_stored(0, sums, width * 4);
    _tile_stored(1, sums + TILE_OUTPUTS, width * 4);
    _tile_stored(2, sums + 2 * TILE_OUTPUTS, width * 4);
    if (IS_PAIR) {
        sums += TILE_ROWS * width;
        _tile_stored(3, sums, width * 4);
        _tile_stored(4, sums + TILE_OUTPUTS, width * 4);
        _tile_stored(5, sums + 2 * TILE_OUTPUTS, width * 4);
    }
}

#else
#define HAS_MATRIX_UNIT 0
static void open_matrix_unit() {}
static void close_matrix_unit() {}
#endif
