// Products of which only the largest output of each row must be right, with a weight whose codes of 8 bits are split.
//
// Three steps rule outputs out. First, all are computed with the upper halves of the codes, which are taken for the
// middle of the codes that they begin, and with inputs that are rounded to 8 bits, by products of whole numbers. Then,
// of the panels in which an output could be the largest of its row, the lower halves are added. What is left is
// computed in full. The Cauchy-Schwarz inequality bounds how far an output is off: at most the norm of a group's inputs
// times that of what is left of its codes, and the norm of what is left of all inputs times that of the output's
// weights. Outputs that are ruled out stay as they are, which is lower than the largest.
#pragma once

#include <algorithm>
#include <cfloat>
#include <numeric>

#include "quantized.h"

#define MIDDLE 7.5f       // of lower halves
#define MOST_ROUNDED 127  // the greatest rounded number
// Of so many groups, one is multiplied as a whole at once, if there are more rows than so many.
#define GROUPS_OF_A_WHOLE_ONE 10
#define ROWS_BY_HALVES 2
#define ROWS_TOGETHER (MOST_SCREENED_ROWS < 8 ? MOST_SCREENED_ROWS : 8)  // whose sums fit the registers

// The greatest number of a vector.
static inline float greatest(Vector numbers) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)numbers);
#else
    float found = numbers[0];
    for (int l = 1; l < LANES; l++) found = numbers[l] > found ? numbers[l] : found;
    return found;
#endif
}

static inline Vector magnitude(Vector numbers) { return numbers < 0.0f ? -numbers : numbers; }

// Adds the products of four unsigned bytes of each lane, which are at most MOST_ROUNDED, with four signed ones.
static inline Integers add_bytes(Integers sums, Codes bytes, int signed_bytes) {
#if defined(__AVX512VNNI__)
    return (Integers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)bytes, _mm512_set1_epi32(signed_bytes));
#elif defined(__AVX512BW__)
    const __m512i pairs = _mm512_maddubs_epi16((__m512i)bytes, _mm512_set1_epi32(signed_bytes));
    return sums + (Integers)_mm512_madd_epi16(pairs, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
    const __m256i pairs = _mm256_maddubs_epi16((__m256i)bytes, _mm256_set1_epi32(signed_bytes));
    return sums + (Integers)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
    for (int bit = 0; bit < 32; bit += 8)
        sums += (Integers)(bytes >> bit & 255) * ((int)((unsigned)signed_bytes << (24 - bit)) >> 24);
    return sums;
#endif
}

// Groups whose norms lie in four bytes of each output, as add_bytes reads them.
static inline long fours_of(long num_groups) { return (num_groups + 3) / 4; }

// Rows whose inputs are rounded. codes: int8 [rows][K], in the order of the bytes of lines. Of each group, [rows][K /
// 32]: scales: what a rounded input stands for; offsets: what is added to sums of products with upper halves and with
// lower ones; the first are rounded, for which the second make up. norms: of each group's rounded inputs, in steps of
// norm_units [rows], rounded up, int8 [rows][fours][4]. is_whole: the groups whose lower halves are multiplied with the
// upper ones, as their inputs are the largest; their norms are 0. errors: the norm of what rounding leaves of a row,
// and what sums can be off.
struct RoundedRows {
    std::vector<int8_t> codes, norms;
    std::vector<float> scales, norm_units, errors;
    std::vector<int> offsets[2];
    std::vector<char> is_whole;

    void round(const half_t* x, long x_stride, long rows, long num_inputs) {
        const long num_groups = num_inputs / GROUP, num_fours = fours_of(num_groups);
        // A sum of as many products as there are inputs is right but for this share of the norms of what is multiplied.
        const float rounding = (float)(num_inputs + 64) * 0x1p-22f;
        codes.resize(rows * num_inputs), norms.assign(rows * num_fours * 4, 0);
        for (std::vector<int>& one : offsets) one.resize(rows * num_groups);
        scales.resize(rows * num_groups), group_norms_.resize(rows * num_groups);
        norm_units.resize(rows), errors.resize(rows);
        for (long r = 0; r < rows; r++) {
            float row_norm = 0, row_error = 0;
            for (long group = 0; group < num_groups; group++) {
                const half_t* from = x + r * x_stride + group * GROUP;
                int8_t* to = codes.data() + r * num_inputs + group * GROUP;
                float inputs[GROUP], most = 0, squares = 0;
                int total = 0, rounded_squares = 0;
                for (int k = 0; k < GROUP; k++) {
                    inputs[k] = number(from[k]);
                    squares += inputs[k] * inputs[k];
                    most = fmaxf(most, fabsf(inputs[k]));
                }
                const bool is_finite = squares <= FLT_MAX;
                const float scale = most / MOST_ROUNDED, inverse = is_finite && scale > FLT_MIN ? 1 / scale : 0;
                for (int k = 0; k < GROUP; k++) {
                    const int rounded = is_finite ? (int)nearbyintf(inputs[k] * inverse) : 0;
                    const float left = inputs[k] - scale * (float)rounded;
                    total += rounded, rounded_squares += rounded * rounded, row_error += left * left;
                    to[k / 4 * 4 + bit_in_half(8, k) / 8] = (int8_t)rounded;  // as the bytes of lines
                }
                row_norm += squares;
                const long at = r * num_groups + group;
                scales[at] = is_finite ? scale : NAN;
                offsets[0][at] = (int)nearbyintf((MIDDLE - SIGN) / 16 * (float)total);
                offsets[1][at] = -SIGN * total - 16 * offsets[0][at];
                group_norms_[at] = is_finite ? scale * sqrtf((float)rounded_squares) * (1 + rounding) : 0;
            }
            errors[r] = (sqrtf(row_error) + rounding * sqrtf(row_norm)) * (1 + rounding);
        }
        choose_whole(rows, num_groups);
        for (long r = 0; r < rows; r++) {
            float* own = group_norms_.data() + r * num_groups;
            float greatest = 0;
            for (long group = 0; group < num_groups; group++) {
                if (is_whole[group]) own[group] = 0;
                greatest = fmaxf(greatest, own[group]);
            }
            norm_units[r] = greatest / (MOST_ROUNDED - 1);
            for (long group = 0; group < num_groups && greatest > 0 && greatest <= FLT_MAX; group++)
                norms[r * num_fours * 4 + group] = (int8_t)ceilf(own[group] / norm_units[r]);
        }
    }

   private:
    // Chooses those with the greatest share of their rows' norms.
    void choose_whole(long rows, long num_groups) {
        shares_.assign(num_groups, 0), is_whole.assign(num_groups, 0);
        for (long r = 0; r < rows; r++) {
            const float* own = group_norms_.data() + r * num_groups;
            const float all = std::accumulate(own, own + num_groups, FLT_MIN);
            for (long group = 0; group < num_groups; group++) shares_[group] += own[group] / all;
        }
        for (long number = 0; rows > ROWS_BY_HALVES && number < num_groups / GROUPS_OF_A_WHOLE_ONE; number++) {
            const long largest = std::max_element(shares_.begin(), shares_.end()) - shares_.begin();
            is_whole[largest] = 1, shares_[largest] = -1;
        }
    }

    std::vector<float> group_norms_, shares_;
};

// What outputs are bounded by. left: of each group, the norm of what the lower halves add to the middle, times the
// scale, in steps of `units` [panels][PANEL], rounded up, uint8 [panels][fours][PANEL][4]. whole: the sum of the norms
// of an output's weights and of all that its lower halves add, [panels][PANEL].
struct WeightNorms {
    uint8_t* left;
    float *units, *whole;
    long num_fours;

    template <class F>
    WeightNorms(const Quantized<F>& weight, void* at) {
        num_fours = fours_of(weight.num_groups());
        left = (uint8_t*)at;
        units = (float*)(left + weight.num_panels() * panel_bytes());
        whole = units + weight.num_panels() * PANEL;
    }
    long panel_bytes() const { return num_fours * PANEL * 4; }
};

template <class F>
static void find_norms(const Quantized<F>& weight, void* out) {
    using Q = Quantized<F>;
    // What RoundedRows::offsets round is at most half of 16, and the norm of rounded inputs at least MOST_ROUNDED.
    constexpr float HALF_STEP = 8.0f / MOST_ROUNDED;
    const WeightNorms norms(weight, out);
    const long num_groups = weight.num_groups();
#pragma omp parallel for
    for (long panel = 0; panel < weight.num_panels(); panel++) {
        uint8_t* left = norms.left + panel * norms.panel_bytes();
        memset(left, 0, norms.panel_bytes());
        for (int lane = 0; lane < PANEL; lane++) {
            std::vector<float> own(num_groups);
            float most = 0, squares = 0, left_squares = 0;
            for (long group = 0; group < num_groups; group++) {
                const float scale = scale_at<F>(weight.scales(panel, group / weight.span_groups), lane);
                uint8_t codes[GROUP];
                read_codes<F>(weight.codes(panel, group), lane, weight.below(), codes);
                int lower = 0, all = 0;  // `lower` of numbers that are doubled so that they are whole
                for (int k = 0; k < GROUP; k++) {
                    const int twice = 2 * (codes[k] & 15) - 15, value = codes[k] - SIGN;
                    lower += twice * twice, all += value * value;
                }
                own[group] = fabsf(scale) * (sqrtf((float)lower) / 2 + HALF_STEP) * (1 + 0x1p-10f);
                most = fmaxf(most, own[group]);
                squares += scale * scale * (float)all, left_squares += scale * scale * (float)lower / 4;
            }
            const float unit = most / (MOST_ROUNDED - 1);
            for (long group = 0; group < num_groups && unit > 0 && unit <= FLT_MAX; group++)
                left[(group / 4 * PANEL + lane) * 4 + group % 4] = (uint8_t)ceilf(own[group] / unit);
            norms.units[panel * PANEL + lane] = unit;
            norms.whole[panel * PANEL + lane] = (sqrtf(squares) + sqrtf(left_squares)) * (1 + 0x1p-10f);
        }
    }
}

// Multiplies ROWS rows with the upper halves of a group's codes, or with the lower ones, and adds that to `sums`. at:
// the first row's number among the rows' groups.
template <class F, int ROWS, bool IS_UPPER>
__attribute__((always_inline)) static inline void add_group(const uint8_t* codes, Vector scale, const RoundedRows& x,
                                                            long at, long num_groups, int v, Vector (&sums)[ROWS]) {
    constexpr int LINES = Quantized<F>::BITS / 2, CHAINS = ROWS <= 4 ? 2 : 1;  // sums that do not wait for one another
    const int* offsets = x.offsets[IS_UPPER ? 0 : 1].data() + at;
    Integers products[CHAINS][ROWS] = {};
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) products[0][r] += offsets[r * num_groups];
#pragma GCC unroll 4
    for (int line = 0; line < LINES; line++) {
        const Codes halves = load_stored(codes, 0, v, line);
        const Codes even = halves & LOWER_HALVES, odd = halves >> 4 & LOWER_HALVES;
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            int given[2];
            memcpy(given, x.codes.data() + (at + r * num_groups) * GROUP + line * 8, 8);
            products[0][r] = add_bytes(products[0][r], even, given[0]);
            products[CHAINS - 1][r] = add_bytes(products[CHAINS - 1][r], odd, given[1]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
        if constexpr (CHAINS == 2) products[0][r] += products[1][r];
        const Vector factor = scale * broadcast(x.scales[at + r * num_groups]);
        sums[r] = multiply_add(factor, __builtin_convertvector(products[0][r], Vector), sums[r]);
    }
}

// Multiplies ROWS rows with a panel and adds that to `out` [ROWS][PANEL]: the first call with the upper halves of all
// groups and the lower halves of those that are whole, the second one with all other lower halves. errors: by how much
// the second call can change each output, [ROWS][PANEL], which the first one writes.
template <class F, int ROWS, bool IS_FIRST>
static void add_halves(const Quantized<F>& weight, long panel, const WeightNorms& norms, const RoundedRows& x, long row,
                       float (*out)[PANEL], float (*errors)[PANEL]) {
    using Q = Quantized<F>;
    const long num_groups = weight.num_groups(), next = weight.panel_stride(), below = weight.below();
    const uint8_t* scales = weight.scales(panel, 0);
    for (int v = 0; v < VECTORS; v++) {
        Vector sums[ROWS];
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) sums[r] = load(out[r] + v * LANES);
        const uint8_t* codes = weight.codes(panel, 0);
        for (long group = 0; group < num_groups; group++, codes += Q::GROUP_STRIDE) {
            const long at = row * num_groups + group;
            const uint8_t* own_scales = scales + group / weight.span_groups * Q::SPAN_BYTES;
            const Vector scale = load_scales<F::SCALES>(own_scales + v * LANES * Q::SCALE_BYTES);
            if constexpr (IS_FIRST) {
#pragma GCC unroll 4
                for (long byte = 0; byte < Q::GROUP_STRIDE; byte += 64)
                    if (v == 0) __builtin_prefetch(codes + next + byte, 0, 2);
                add_group<F, ROWS, true>(codes, scale * 16.0f, x, at, num_groups, v, sums);
            }
            if (IS_FIRST != (bool)x.is_whole[group]) continue;
#pragma GCC unroll 4
            for (long byte = 0; byte < Q::GROUP_STRIDE; byte += 64)
                if (IS_FIRST && v == 0) __builtin_prefetch(codes + below + next + byte, 0, 2);
            add_group<F, ROWS, false>(codes + below, scale, x, at, num_groups, v, sums);
        }
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) store(out[r] + v * LANES, sums[r]);
        if constexpr (!IS_FIRST) continue;
        Integers rests[ROWS] = {};
        const uint8_t* left = norms.left + panel * norms.panel_bytes();
        const int8_t* row_norms = x.norms.data() + row * norms.num_fours * 4;
        for (long four = 0; four < norms.num_fours; four++) {
            const Codes own_left = load_stored(left, 0, v, four);
#pragma GCC unroll 8
            for (int r = 0; r < ROWS; r++) {
                int given;
                memcpy(&given, row_norms + (r * norms.num_fours + four) * 4, 4);
                rests[r] = add_bytes(rests[r], own_left, given);
            }
        }
        const Vector units = load(norms.units + panel * PANEL + v * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
            store(errors[r] + v * LANES, __builtin_convertvector(rests[r], Vector) * units * x.norm_units[row + r]);
    }
}

// Adds the upper halves of a number of rows that the compiler does not know, at most MOST.
template <class F, int MOST = ROWS_TOGETHER>
static void add_upper_halves(long rows, const Quantized<F>& weight, long panel, const WeightNorms& norms,
                             const RoundedRows& x, long row, float (*out)[PANEL], float (*errors)[PANEL]) {
    if (rows == MOST) return add_halves<F, MOST, true>(weight, panel, norms, x, row, out, errors);
    if constexpr (MOST > 1) add_upper_halves<F, MOST - 1>(rows, weight, panel, norms, x, row, out, errors);
}

// The greatest number that one of a panel's first `width` outputs can be, and the least that the greatest of them can
// be. error: of a row; then its product with `norms` is added to `errors`.
struct Range {
    float lowest, highest;

    Range(float* outputs, float* errors, const float* norms, float error, long width) {
        for (long n = width; n < PANEL; n++) outputs[n] = -FLT_MAX, errors[n] = 0;
        lowest = highest = -INFINITY;
        for (int v = 0; v < VECTORS; v++) {
            const Vector output = load(outputs + v * LANES);
            Vector off = multiply_add(load(norms + v * LANES), broadcast(error), load(errors + v * LANES));
            off += (magnitude(output) + off) * 0x1p-20f;
            // What is not a number is never ruled out.
            const Vector most = output + off, least = output - off;
            highest = fmaxf(highest, greatest(most == most ? most : broadcast(INFINITY)));
            lowest = fmaxf(lowest, greatest(least == least ? least : broadcast(-INFINITY)));
        }
    }
};

// A product of some rows with a thread's panels of which only the largest output of each row must be right.
template <class F>
class ScreenedProduct {
   public:
    // a: see multiply_quantized; then what find_norms wrote.
    ScreenedProduct(const long* a, long first, long last, long thread, long num_threads)
        : weight_{(const uint8_t*)a[3], a[6], a[7], a[8]},
          norms_(weight_, (void*)a[9]),
          bias_((const float*)a[4]),
          x_((const half_t*)a[0] + a[1] + first * a[2]),
          x_stride_(a[2]),
          out_((float*)a[5] + first * a[7]),
          rows_(last - first),
          begin_(weight_.num_panels() * thread / num_threads),
          end_(weight_.num_panels() * (thread + 1) / num_threads) {
        rounded_.round(x_, x_stride_, rows_, weight_.num_inputs);
        bounds_.resize((end_ - begin_) * rows_);
    }

    // Adds the upper halves. Computes in full the panel of each row whose largest output is likely the largest. limits:
    // the largest outputs that were computed in full.
    void add_upper(float* limits) {
        long likeliest[MOST_SCREENED_ROWS];
        for (long r = 0; r < rows_; r++) limits[r] = -INFINITY, likeliest[r] = begin_;
        for (long panel = begin_; panel < end_; panel++) {
            for (long at = 0; at < norms_.panel_bytes(); at += 64)
                __builtin_prefetch(norms_.left + (panel + 2) * norms_.panel_bytes() + at, 0, 2);
            for (long row = 0; row < rows_; row += ROWS_TOGETHER) {
                const long some = rows_ - row < ROWS_TOGETHER ? rows_ - row : ROWS_TOGETHER;
                alignas(64) float sums[ROWS_TOGETHER][PANEL] = {}, errors[ROWS_TOGETHER][PANEL];
                for (long r = 0; bias_ && r < some; r++) memcpy(sums[r], bias_ + panel * PANEL, width(panel));
                add_upper_halves<F>(some, weight_, panel, norms_, rounded_, row, sums, errors);
                for (long r = 0; r < some; r++) {
                    const Range range = note(panel, row + r, sums[r], errors[r]);
                    if (range.lowest > limits[row + r]) limits[row + r] = range.lowest, likeliest[row + r] = panel;
                }
            }
        }
        chosen_.clear();
        for (long r = 0; r < rows_ && begin_ < end_; r++) chosen_.push_back({likeliest[r], r});
        multiply_chosen();
        for (long r = 0; r < rows_; r++) limits[r] = -INFINITY;
        for (const Chosen& one : chosen_) {
            const float* outputs = outputs_of(one.panel, one.row);
            for (long n = 0; n < num_outputs(one.panel); n++)
                if (outputs[n] > limits[one.row]) limits[one.row] = outputs[n];
            bound(one) = -INFINITY;
        }
    }

    // Adds the lower halves where an output could be as large as the limit of its row, and computes in full what still
    // can. limits: numbers that the largest outputs reach.
    void add_lower(float* limits) {
        chosen_.clear();
        for (long number = 0; number < (end_ - begin_) * rows_; number++)
            if (bounds_[number] >= limits[number % rows_]) chosen_.push_back({begin_ + number / rows_, number % rows_});
        for (size_t number = 0; number < chosen_.size(); number++) {
            const Chosen one = chosen_[number], next = chosen_[number + 1 < chosen_.size() ? number + 1 : number];
            const uint8_t* ahead = weight_.codes(next.panel, 0) + weight_.below();
            for (long at = 0; next.panel != one.panel && at < weight_.panel_stride(); at += 64)
                __builtin_prefetch(ahead + at, 0, 3);
            alignas(64) float sums[1][PANEL] = {}, errors[1][PANEL] = {};
            memcpy(sums[0], outputs_of(one.panel, one.row), width(one.panel));
            add_halves<F, 1, false>(weight_, one.panel, norms_, rounded_, one.row, sums, errors);
            limits[one.row] = fmaxf(limits[one.row], note(one.panel, one.row, sums[0], errors[0]).lowest);
        }
        const auto is_out = [&](const Chosen& one) { return bound(one) < limits[one.row]; };
        chosen_.erase(std::remove_if(chosen_.begin(), chosen_.end(), is_out), chosen_.end());
        multiply_chosen();
    }

   private:
    // A panel of the outputs of a row.
    struct Chosen {
        long panel, row;
    };

    long num_outputs(long panel) const {
        const long rest = weight_.num_outputs - panel * PANEL;
        return rest < PANEL ? rest : PANEL;
    }
    long width(long panel) const { return num_outputs(panel) * sizeof(float); }
    float* outputs_of(long panel, long row) const { return out_ + row * weight_.num_outputs + panel * PANEL; }
    float& bound(const Chosen& one) const { return bounds_[(one.panel - begin_) * rows_ + one.row]; }

    // Writes what is known of a panel's outputs, and the most that one of them can be. errors: see add_halves.
    Range note(long panel, long row, float* sums, float* errors) const {
        memcpy(outputs_of(panel, row), sums, width(panel));
        const Range range(sums, errors, norms_.whole + panel * PANEL, rounded_.errors[row], num_outputs(panel));
        bound({panel, row}) = range.highest;
        return range;
    }

    void multiply_chosen() const {
        using Q = Quantized<F>;
        static thread_local std::vector<float> inputs, sums;
        const long num_inputs = weight_.num_inputs, num_sums = num_inputs / F::STEP_GROUP;
        inputs.resize(Q::BY_PAIRS ? 0 : num_inputs);
        sums.resize(num_sums);
        for (const Chosen& one : chosen_) {
            const half_t* halves = x_ + one.row * x_stride_;
            const Outputs out = {out_ + one.row * weight_.num_outputs, bias_, weight_.num_outputs, false};
            prepare<F>(halves, x_stride_, 1, num_inputs, inputs.data(), sums.data());
            const Inputs own = {inputs.data(), sums.data(), num_inputs, num_sums, halves, x_stride_};
            add_panels<F, 1, 1, 1, false>(1, weight_, one.panel, 0, weight_.num_groups(), nullptr, own, out);
        }
    }

    static inline thread_local RoundedRows rounded_;
    static inline thread_local std::vector<float> bounds_;  // [panels][rows]
    static inline thread_local std::vector<Chosen> chosen_;
    const Quantized<F> weight_;
    const WeightNorms norms_;
    const float* bias_;
    const half_t* x_;
    const long x_stride_;
    float* out_;
    const long rows_, begin_, end_;
};

// Multiplies rows [first, last) with a thread's panels. limits: of all threads, `stride` numbers apart. meet: waits
// until all threads have called it. a: see ScreenedProduct.
template <class F>
static void multiply_screened(const long* a, long first, long last, long thread, long num_threads, float* limits,
                              long stride, void (*meet)(void*), void* meeting) {
    ScreenedProduct<F> product(a, first, last, thread, num_threads);
    product.add_upper(limits + thread * stride);
    meet(meeting);
    float most[MOST_SCREENED_ROWS];
    for (long r = 0; r < last - first; r++) {
        most[r] = limits[r];
        for (long t = 1; t < num_threads; t++) most[r] = fmaxf(most[r], limits[t * stride + r]);
    }
    product.add_lower(most);
}
