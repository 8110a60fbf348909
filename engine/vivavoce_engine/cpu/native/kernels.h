// What speech.cpp and code2wav.cpp share: vectors, elementwise functions, products of matrices, and the transformer.
//
// Every output of a product is one chain of multiply-adds over its inputs in one order, whatever the number of rows,
// the tile that holds it, and the threads. So a result has the same bits alone and in any batch, at once and in pieces.
#pragma once
#include <math.h>
#include <string.h>

#include "interface.h"
#include "pool.h"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Floats of a vector. TILE_VECTORS of a block's vectors, times TILE_ROWS rows, are the sums that the registers hold.
#if defined(__AVX512F__)
enum { VW = 16, TILE_VECTORS = 2, TILE_ROWS = 12 };
#define VIVAVOCE_ISA "avx512"
#elif defined(__AVX2__)
enum { VW = 8, TILE_VECTORS = 2, TILE_ROWS = 6 };
#define VIVAVOCE_ISA "avx2"
#elif defined(__aarch64__)
enum { VW = 4, TILE_VECTORS = 4, TILE_ROWS = 6 };
#define VIVAVOCE_ISA "neon"
#else
enum { VW = 4, TILE_VECTORS = 2, TILE_ROWS = 6 };
#define VIVAVOCE_ISA "portable"
#endif
enum { BLOCK_VECTORS = BLOCK / VW };

typedef float vf __attribute__((vector_size(VW * 4)));
typedef int32_t vi __attribute__((vector_size(VW * 4)));
typedef uint32_t vu __attribute__((vector_size(VW * 4)));
typedef float vf_anywhere __attribute__((vector_size(VW * 4), aligned(4), may_alias));
typedef uint32_t vu_anywhere __attribute__((vector_size(VW * 4), aligned(4), may_alias));

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("unroll")  // rolled loops over a tile would keep its sums in memory
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

// What a function returns that refuses its arguments.
enum Refusal : int32_t {
    REFUSED_SHAPE = -1,
    REFUSED_ROW = -2,
    REFUSED_POSITION = -3,
    REFUSED_FRAME = -4,
    REFUSED_TWICE = -5,
    REFUSED_COUNT = -6,
};

// ---- vectors
INLINE vf ld(const float* p) { return *(const vf_anywhere*)p; }
INLINE void st(float* p, vf v) { *(vf_anywhere*)p = v; }
// The first n floats; the others are 0, and are neither read nor written.
INLINE vf ld(const float* p, int n) {
    if (n >= VW) return ld(p);
#if defined(__AVX512F__)
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    vf v = {};
    for (int i = 0; i < n; i++) v[i] = p[i];
    return v;
#endif
}
INLINE void st(float* p, vf v, int n) {
    if (n >= VW) return st(p, v);
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
#else
    for (int i = 0; i < n; i++) p[i] = v[i];
#endif
}
INLINE vf all(float x) { return x - (vf){}; }  // a plain broadcast, because x - 0 is x even for -0
INLINE float hsum(vf v) {
#if defined(__AVX512F__)
    v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3);
#elif defined(__AVX2__)
    v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
#endif
    return (v[0] + v[2]) + (v[1] + v[3]);
}
// Calls f(index, count) for vectors that cover n floats. count is VW but for the last.
template <class F> INLINE void by_vector(int n, F f) {
    int i = 0;
    for (; i + VW <= n; i += VW) f(i, (int)VW);
    if (i < n) f(i, n - i);
}

// ---- elementwise
// exp, relative error about 1e-7; e^-87 below that, and for NaN.
INLINE vf vexp(vf x) {
    vf low = all(-87.f), high = all(88.f);
    x = x > low ? x : low;
    x = x < high ? x : high;
    vf t = x * all(1.44269504f);
    vi n = __builtin_convertvector(t + (t < all(0.f) ? all(-.5f) : all(.5f)), vi);
    vf whole = __builtin_convertvector(n, vf);
    x = x - whole * all(0.693359375f) - whole * all(-2.12194440e-4f);
    vf p = all(1.9875691500e-4f);
    p = p * x + all(1.3981999507e-3f);
    p = p * x + all(8.3334519073e-3f);
    p = p * x + all(4.1665795894e-2f);
    p = p * x + all(1.6666665459e-1f);
    p = p * x + all(5.0000001201e-1f);
    p = p * x * x + x + all(1.f);
    return p * (vf)((vu)(n + 127) << 23);
}
// sin(x)^2, whose period is pi, so that the sign never matters. |x| up to some 1e4; larger ones lose digits.
INLINE vf vsin2(vf x) {
    vf limit = all(1e6f), magic = all(12582912.f);  // 1.5 * 2^23: a float this large has no fraction
    x = x > -limit ? x : -limit;
    x = x < limit ? x : limit;
    vf whole = x * all(0.318309886f) + magic - magic;
    x = x - whole * all(3.140625f);
    x = x - whole * all(9.67502593994140625e-4f);
    x = x - whole * all(1.509957990978376432e-7f);
    vf z = x * x;
    vf p = all(-2.3889859e-8f);
    p = p * z + all(2.7525562e-6f);
    p = p * z + all(-1.9840874e-4f);
    p = p * z + all(8.3333310e-3f);
    p = p * z + all(-1.6666667e-1f);
    vf s = x + x * z * p;
    return s * s;
}
// RMSNorm of n floats. out may be x.
INLINE void rms(const float* x, const float* weight, int n, float epsilon, float* out) {
    vf squares = {};
    by_vector(n, [&](int i, int count) { vf v = ld(x + i, count); squares += v * v; });
    float scale = 1.f / sqrtf(hsum(squares) / n + epsilon);
    by_vector(n, [&](int i, int count) { st(out + i, ld(weight + i, count) * (ld(x + i, count) * scale), count); });
}
INLINE float highest(const float* x, int n) {
    vf best = all(x[0]);
    for (int i = 0; i + VW <= n; i += VW) { vf v = ld(x + i); best = v > best ? v : best; }
    float found = best[0];
    for (int i = 1; i < VW; i++) found = best[i] > found ? best[i] : found;
    for (int i = n / VW * VW; i < n; i++) found = x[i] > found ? x[i] : found;
    return found;
}
// Replaces x [n] by exp(x - its highest), and returns their sum: softmax but for the division. What is below e^-87, where
// vexp ends, becomes 0, so that nothing impossible can be drawn.
INLINE float softmax(float* x, int n) {
    float top = highest(x, n);
    vf total = {};
    by_vector(n, [&](int i, int count) {
        vf v = ld(x + i, count), e = vexp(v - top);
        e = v - top < all(-87.f) ? all(0.f) : e;
        st(x + i, e, count);
        total += count == VW ? e : ld(x + i, count);
    });
    return hsum(total);
}

// ---- products
// N of the vectors of a block's 32 outputs. Vector v of part `part` is the block's number vector_at<N>(part, v).
// bfloat16 keeps outputs j and j + 16 in one word, so a part takes as many vectors of each half.
template <int N> INLINE int vector_at(int part, int v) {
    return N == BLOCK_VECTORS ? v : v < N / 2 ? part * N / 2 + v : BLOCK_VECTORS / 2 + part * N / 2 + v - N / 2;
}
template <int N> INLINE void weights_at(const float* w, int part, vf* out) {
    UNROLL for (int v = 0; v < N; v++) out[v] = ld(w + vector_at<N>(part, v) * VW);
}
template <int N> INLINE void weights_at(const uint16_t* w, int part, vf* out) {
    UNROLL for (int v = 0; v < N / 2; v++) {
        vu words = *(const vu_anywhere*)(w + vector_at<N>(part, v) * VW * 2);
        out[v] = (vf)(words << 16);
        out[v + N / 2] = (vf)(words & 0xffff0000u);
    }
}

// Whole numbers: INT8 and INT11. A product's inputs become whole too, of 16 bits, with a scale for each block of inputs
// of a row. Sums within a block are then exact integers, of twice as many products a second as floats: at most 64 times
// 1023 * 32767, below 2^31. Pairs holds the weights of VW outputs for two inputs, Twice those inputs for each output.
enum { WHOLE_MAX = 32767, WHOLE_BLOCK = 64 };
template <class W> constexpr bool is_whole = false;
template <> inline constexpr bool is_whole<int8_t> = true;
template <> inline constexpr bool is_whole<int16_t> = true;
#if defined(__AVX512F__)
typedef __m512i Pairs, Twice;
INLINE Pairs pairs_at(const int8_t* w) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)w)); }
INLINE Pairs pairs_at(const int16_t* w) { return _mm512_loadu_si512(w); }
INLINE Twice twice(int32_t both) { return _mm512_set1_epi32(both); }
#if defined(__AVX512VNNI__)
INLINE vi add_pairs(vi sum, Pairs w, Twice x) { return (vi)_mm512_dpwssd_epi32((__m512i)sum, w, x); }
#else
INLINE vi add_pairs(vi sum, Pairs w, Twice x) { return sum + (vi)_mm512_madd_epi16(w, x); }
#endif
#elif defined(__AVX2__)
typedef __m256i Pairs, Twice;
INLINE Pairs pairs_at(const int8_t* w) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)w)); }
INLINE Pairs pairs_at(const int16_t* w) { return _mm256_loadu_si256((const __m256i*)w); }
INLINE Twice twice(int32_t both) { return _mm256_set1_epi32(both); }
INLINE vi add_pairs(vi sum, Pairs w, Twice x) { return sum + (vi)_mm256_madd_epi16(w, x); }
#elif defined(__x86_64__)
typedef __m128i Pairs, Twice;
INLINE Pairs pairs_at(const int8_t* w) {
    __m128i bytes = _mm_loadl_epi64((const __m128i*)w);
    return _mm_srai_epi16(_mm_unpacklo_epi8(bytes, bytes), 8);
}
INLINE Pairs pairs_at(const int16_t* w) { return _mm_loadu_si128((const __m128i*)w); }
INLINE Twice twice(int32_t both) { return _mm_set1_epi32(both); }
INLINE vi add_pairs(vi sum, Pairs w, Twice x) { return sum + (vi)_mm_madd_epi16(w, x); }
#else
struct Pairs { int16x4_t first, second; };
struct Twice { int16_t first, second; };
INLINE Pairs pairs_of(int16x8_t w) { return {vget_low_s16(vuzp1q_s16(w, w)), vget_low_s16(vuzp2q_s16(w, w))}; }
INLINE Pairs pairs_at(const int8_t* w) { return pairs_of(vmovl_s8(vld1_s8(w))); }
INLINE Pairs pairs_at(const int16_t* w) { return pairs_of(vld1q_s16(w)); }
INLINE Twice twice(int32_t both) { return {(int16_t)(both & 0xffff), (int16_t)(both >> 16)}; }
INLINE vi add_pairs(vi sum, Pairs w, Twice x) {
    return (vi)vmlal_n_s16(vmlal_n_s16((int32x4_t)sum, w.first, x.first), w.second, x.second);
}
#endif
// x [n] → values [n] from -32767 to 32767, and a scale for each `block` of them. A scale is not finite if one of its
// inputs is not.
INLINE void to_whole(const float* x, int n, int block, int16_t* values, float* scales) {
    const vf magic = all(12582912.f), most = all((float)WHOLE_MAX);  // 1.5 * 2^23: a float this large has no fraction
    for (int start = 0; start < n; start += block, scales++) {
        vf top = {}, nothing = {};
        by_vector(block, [&](int i, int count) {
            vf v = ld(x + start + i, count), size = v < all(0.f) ? -v : v;
            top = size > top ? size : top;
            nothing += v * all(0.f);  // NaN of what is not finite
        });
        float highest = top[0];
        for (int i = 1; i < VW; i++) highest = top[i] > highest ? top[i] : highest;
        const vf inverse = all(highest > 1e-30f ? WHOLE_MAX / highest : 0.f);
        *scales = highest / WHOLE_MAX + hsum(nothing);
        by_vector(block, [&](int i, int count) {
            vf v = ld(x + start + i, count) * inverse;
            v = v < most ? v : most;  // most for NaN
            v = v > -most ? v : -most;
            vi whole = __builtin_convertvector(v + magic - magic, vi);
            typedef int16_t vs __attribute__((vector_size(VW * 2), aligned(2), may_alias));
            if (count == VW) *(vs*)(values + start + i) = __builtin_convertvector(whole, vs);
            else for (int j = 0; j < count; j++) values[start + i + j] = (int16_t)whole[j];
        });
    }
}

struct Product {
    const Matrix* matrix;
    const float* x;
    int64_t x_stride;
    int taps;
    int64_t tap_step;
    const int16_t* whole;  // x as whole numbers, row after row of an input's width, and its scales
    const float* whole_scales;
    const float* onto;
    float* out;
    int64_t out_stride;
};
// sums [ROWS][BLOCKS][N] += x [ROWS] times the weights of one input.
template <class W, int ROWS, int BLOCKS, int N>
INLINE void multiply(const float* x, int64_t x_stride, const W* w, int64_t w_block, int part,
                     vf (&sums)[ROWS][BLOCKS][N]) {
    UNROLL for (int b = 0; b < BLOCKS; b++) {
        vf weights[N];
        weights_at<N>(w + b * w_block, part, weights);
        UNROLL for (int r = 0; r < ROWS; r++) {
            vf value = all(x[r * x_stride]);
            UNROLL for (int v = 0; v < N; v++) sums[r][b][v] += value * weights[v];
        }
    }
}
// sums += the product of whole numbers, block of inputs by block.
template <class W, int ROWS, int BLOCKS, int N>
INLINE void multiply_whole(const Product& p, int row, int block, int part, vf (&sums)[ROWS][BLOCKS][N]) {
    const Matrix& m = *p.matrix;
    const int per_tap = m.inputs / p.taps, groups = per_tap / m.block;
    const int64_t w_block = (int64_t)m.inputs * BLOCK, padded = (int64_t)(m.outputs + BLOCK - 1) / BLOCK * BLOCK;
    const W* w = (const W*)m.weights + block * w_block + part * N * VW * 2;
    const float* scales = m.scales + block * BLOCK + part * N * VW;
    for (int t = 0; t < p.taps; t++) {
        const int64_t first = row + t * (p.tap_step / per_tap);
        const int16_t* x = p.whole + first * per_tap;
        const float* x_scales = p.whole_scales + first * groups;
        for (int g = 0; g < groups; g++, x += m.block, scales += padded) {
            vi exact[ROWS][BLOCKS][N] = {};
            for (int i = 0; i < m.block; i += 2, w += 2 * BLOCK)
                UNROLL for (int b = 0; b < BLOCKS; b++) {
                    Pairs weights[N];
                    UNROLL for (int v = 0; v < N; v++) weights[v] = pairs_at(w + b * w_block + v * VW * 2);
                    UNROLL for (int r = 0; r < ROWS; r++) {
                        int32_t both;
                        memcpy(&both, x + (int64_t)r * per_tap + i, sizeof both);
                        const Twice inputs = twice(both);
                        UNROLL for (int v = 0; v < N; v++)
                            exact[r][b][v] = add_pairs(exact[r][b][v], weights[v], inputs);
                    }
                }
            UNROLL for (int b = 0; b < BLOCKS; b++) UNROLL for (int v = 0; v < N; v++) {
                const vf scale = ld(scales + b * BLOCK + v * VW);
                UNROLL for (int r = 0; r < ROWS; r++) {
                    const vf both = scale * all(x_scales[r * groups + g]);
                    sums[r][b][v] += __builtin_convertvector(exact[r][b][v], vf) * both;
                }
            }
        }
    }
}
// Rows row to row + ROWS - 1 of blocks block to block + BLOCKS - 1, of which N vectors.
template <class W, int ROWS, int BLOCKS, int N>
static void tile(const Product& p, int row, int block, int part) {
    const Matrix& m = *p.matrix;
    vf sums[ROWS][BLOCKS][N] = {};
    if constexpr (is_whole<W>) {
        multiply_whole<W>(p, row, block, part, sums);
    } else {
        const int per_tap = m.inputs / p.taps;
        const int64_t x_stride = p.x_stride, w_block = (int64_t)m.inputs * BLOCK;
        const W* w = (const W*)m.weights + block * w_block;
        for (int t = 0; t < p.taps; t++) {
            const float* x = p.x + row * x_stride + t * p.tap_step;
            for (int i = 0; i < per_tap; i++, w += BLOCK) multiply(x + i, x_stride, w, w_block, part, sums);
        }
    }
    UNROLL for (int r = 0; r < ROWS; r++) UNROLL for (int b = 0; b < BLOCKS; b++) UNROLL for (int v = 0; v < N; v++) {
        int at_block = is_whole<W> ? part * N + v : vector_at<N>(part, v);
        int j = (block + b) * BLOCK + at_block * VW, count = m.outputs - j;
        if (count <= 0) continue;
        int64_t at = (row + r) * p.out_stride + j;
        vf sum = sums[r][b][v];
        if (m.bias) sum += ld(m.bias + j);
        if (p.onto) sum += ld(p.onto + at, count);
        st(p.out + at, sum, count);
    }
}
// A tile of one block and `rows` rows, 1 to TILE_ROWS.
template <class W, int ROWS = TILE_ROWS> INLINE void tile_of(int rows, const Product& p, int row, int block, int part) {
    if (rows == ROWS) tile<W, ROWS, 1, TILE_VECTORS>(p, row, block, part);
    else if constexpr (ROWS > 1) tile_of<W, ROWS - 1>(rows, p, row, block, part);
}
// The blocks of outputs that a tile of so few rows takes at once: enough sums in flight to hide the latency of an add.
INLINE int blocks_at_once(int rows) {
    return rows == 1 ? (BLOCK_VECTORS <= 2 ? 4 : BLOCK_VECTORS <= 4 ? 2 : 1) : rows <= 3 && BLOCK_VECTORS <= 2 ? 2 : 1;
}
// Rows [row, stop) of blocks [block, block + count), where count is at most blocks_at_once.
template <class W> static void piece(const Product& p, int row, int stop, int block, int count) {
    constexpr int ONE = BLOCK_VECTORS <= 2 ? 4 : BLOCK_VECTORS <= 4 ? 2 : 1, FEW = BLOCK_VECTORS <= 2 ? 2 : 1;
    int rows = stop - row;
    if (rows == 1 && count == ONE) return tile<W, 1, ONE, BLOCK_VECTORS>(p, row, block, 0);
    if (FEW == 2 && count == FEW && rows == 2) return tile<W, 2, FEW, BLOCK_VECTORS>(p, row, block, 0);
    if (FEW == 2 && count == FEW && rows == 3) return tile<W, 3, FEW, BLOCK_VECTORS>(p, row, block, 0);
    for (int end = block + count; block < end; block++) {
        if (rows == 1) { tile<W, 1, 1, BLOCK_VECTORS>(p, row, block, 0); continue; }
        for (int part = 0; part < BLOCK_VECTORS / TILE_VECTORS; part++) {
            int tiles = (rows + TILE_ROWS - 1) / TILE_ROWS;  // as equal as can be: 13 rows are 7 and 6
            for (int t = 0, r = row; t < tiles; t++) {
                int n = rows / tiles + (t < rows % tiles);
                tile_of<W>(n, p, r, block, part);
                r += n;
            }
        }
    }
}
enum { SHARE_FROM = 1 << 17, ITEMS_PER_THREAD = 4 };  // multiply-adds worth waking others for; items to even out delays
template <class W> static void product_of(const Product& p, Pool* pool, int rows) {
    int blocks = (p.matrix->outputs + BLOCK - 1) / BLOCK, step = blocks_at_once(rows), chunks = 1;
    int threads = pool_threads(pool);
    if ((int64_t)p.matrix->inputs * p.matrix->outputs * rows < SHARE_FROM) threads = 1;
    if (threads > 1) {
        while (step > 1 && blocks / step < 2 * threads) step /= 2;
        int wanted = ITEMS_PER_THREAD * threads, most = rows / (2 * TILE_ROWS);  // rows are split if blocks are few
        chunks = (wanted * step + blocks - 1) / blocks;
        chunks = chunks < 1 || most < 1 ? 1 : chunks > most ? most : chunks;
    }
    int columns = (blocks + step - 1) / step;
    auto some = [&](int item) {
        int chunk = item / columns, block = item % columns * step;
        int first = (int)((int64_t)rows * chunk / chunks), stop = (int)((int64_t)rows * (chunk + 1) / chunks);
        piece<W>(p, first, stop, block, blocks - block < step ? blocks - block : step);
    };
    int items = columns * chunks, group = items / (ITEMS_PER_THREAD * threads) + 1;  // several small tiles are one item
    parallel(threads > 1 ? pool : nullptr, (items + group - 1) / group, [&](int number) {
        for (int item = number * group; item < items && item < (number + 1) * group; item++) some(item);
    });
}
enum { ROW_WORK = 1 << 15 };  // floats worth waking others for
// Calls each(row) on the pool if rows of so much work pay for it.
template <class Each> INLINE void by_row(Pool* pool, int rows, int64_t work, const Each& each) {
    parallel(rows * work >= ROW_WORK ? pool : nullptr, rows, each);
}
INLINE bool is_whole_kind(const Matrix& matrix) { return matrix.kind == INT8 || matrix.kind == INT11; }
// Whether a product of as many taps can have such a matrix.
INLINE bool fits_taps(const Matrix& m, int taps) {
    if (m.inputs < 1 || m.outputs < 1 || m.kind < FLOAT32 || m.kind > INT11) return false;
    if (taps < 1 || m.inputs % taps) return false;
    if (!is_whole_kind(m)) return true;
    return m.scales && m.block >= 2 && m.block % 2 == 0 && m.block <= WHOLE_BLOCK && m.inputs / taps % m.block == 0;
}
// Floats of spare memory for a product's inputs of as many rows, the rows that taps reach included.
INLINE int64_t whole_floats(int64_t rows, int per_tap) { return rows * per_tap; }
// out [rows][outputs] (row stride out_stride) = x of `taps` taps (rows of stride x_stride, taps tap_step floats apart)
// * matrix + bias + onto, which may be null or out. x must not overlap out. Nothing beyond `outputs` is written. A matrix
// of whole numbers needs `spare` of whole_floats, and an x_stride of a tap's width if there are several taps.
static inline void product(const Matrix& matrix, Pool* pool, const float* x, int64_t x_stride, int rows, int taps,
                           int64_t tap_step, const float* onto, float* out, int64_t out_stride, float* spare) {
    VIVAVOCE_ASSERT(matrix.weights && rows >= 1 && fits_taps(matrix, taps));
    VIVAVOCE_ASSERT(rows == 1 || out_stride >= matrix.outputs);
    Product p = {&matrix, x, x_stride, taps, tap_step, nullptr, nullptr, onto, out, out_stride};
    if (is_whole_kind(matrix)) {
        const int per_tap = matrix.inputs / taps, groups = per_tap / matrix.block;
        VIVAVOCE_ASSERT(spare && (taps == 1 || (x_stride == per_tap && tap_step % per_tap == 0)));
        const int inputs = rows + (int)((taps - 1) * (tap_step / per_tap));
        float* scales = spare;
        int16_t* values = (int16_t*)(spare + (int64_t)inputs * groups);
        by_row(pool, inputs, per_tap, [&](int64_t r) {
            to_whole(x + r * x_stride, per_tap, matrix.block, values + r * per_tap, scales + r * groups);
        });
        p.whole = values;
        p.whole_scales = scales;
    }
    if (matrix.kind == FLOAT32) product_of<float>(p, pool, rows);
    else if (matrix.kind == BFLOAT16) product_of<uint16_t>(p, pool, rows);
    else if (matrix.kind == INT8) product_of<int8_t>(p, pool, rows);
    else product_of<int16_t>(p, pool, rows);
}

// ---- transformer
enum { WINDOW = 32 };  // keys whose scores a step tells
// Where a token of a call is: its row's cache [layers][positions][kv_heads * head_dim], the position that gets its keys
// and values, the first position it sees, and the position by which it is rotated.
struct Place { float *keys, *values; int32_t position, first, angle; };
// out [rows][WINDOW] gets one head's q.k / sqrt(head_dim) of the keys from windows[row] on, and -inf behind the query.
// A row whose window is negative is left as it is.
struct Scores { int32_t layer, head; const int32_t* windows; float* out; };

enum { ATTENTION_ROWS = 64 };  // rows whose scores the scratch holds
INLINE int larger(int a, int b) { return a > b ? a : b; }
INLINE int smaller(int a, int b) { return a < b ? a : b; }

enum { HEADS_AT_ONCE = 3 };  // heads that share keys and values, and attend together, so that these are read once
struct StackSizes { int qkv, attended, wide, scores, inputs; };
INLINE StackSizes sizes_of(const Stack& s) {
    int qkv = (s.heads + 2 * s.kv_heads) * s.head_dim;
    const int attended = s.heads * s.head_dim;
    return {qkv, attended, larger(qkv, 2 * s.inner), HEADS_AT_ONCE * s.positions,
            larger(larger(s.hidden, attended), s.inner)};
}
// Floats of scratch of a call of `rows` rows.
static inline int64_t stack_scratch(const Stack& s, int rows) {
    StackSizes n = sizes_of(s);
    int64_t of_row = s.hidden + n.wide + n.attended + s.head_dim;
    return whole_floats(rows, n.inputs) + rows * of_row + (int64_t)smaller(rows, ATTENTION_ROWS) * n.scores;
}
struct Attention {
    int dim, count, stride;  // count: positions that are seen; stride: floats from one to the next
    const float *query, *keys, *values;
    float *weights, *out;
    int64_t weights_stride;
};
// N vectors, the last of `lanes` floats, of the weighted sums of values, from float `at` of a head on.
template <int HEADS, int N> INLINE void weigh(const Attention& a, int at, int lanes, const float* shares) {
    vf sums[HEADS][N] = {};
    const float* values = a.values + at;
    for (int p = 0; p < a.count; p++, values += a.stride) {
        UNROLL for (int h = 0; h < HEADS; h++) {
            vf weight = all(a.weights[h * a.weights_stride + p]);
            UNROLL for (int v = 0; v < N; v++) sums[h][v] += weight * ld(values + v * VW, v < N - 1 ? (int)VW : lanes);
        }
    }
    UNROLL for (int h = 0; h < HEADS; h++) UNROLL for (int v = 0; v < N; v++) {
        st(a.out + h * a.dim + at + v * VW, sums[h][v] * shares[h], v < N - 1 ? (int)VW : lanes);
    }
}
template <int HEADS> static void attend_heads(const Attention& a) {
    const float scale = 1.f / sqrtf((float)a.dim);
    float shares[HEADS];
    const float* key = a.keys;
    for (int p = 0; p < a.count; p++, key += a.stride) {
        vf sums[HEADS] = {};
        by_vector(a.dim, [&](int i, int n) {
            vf k = ld(key + i, n);
            UNROLL for (int h = 0; h < HEADS; h++) sums[h] += ld(a.query + h * a.dim + i, n) * k;
        });
        UNROLL for (int h = 0; h < HEADS; h++) a.weights[h * a.weights_stride + p] = hsum(sums[h]) * scale;
    }
    for (int h = 0; h < HEADS; h++) shares[h] = 1.f / softmax(a.weights + h * a.weights_stride, a.count);
    int i = 0;
    for (; i + 4 * VW <= a.dim; i += 4 * VW) weigh<HEADS, 4>(a, i, VW, shares);
    for (; i + VW <= a.dim; i += VW) weigh<HEADS, 1>(a, i, VW, shares);
    if (i < a.dim) weigh<HEADS, 1>(a, i, a.dim - i, shares);
}
// Attention of one query, all its heads: q [heads][head_dim] -> out [heads][head_dim].
static inline void attend(const Stack& s, int layer, const float* q, const Place& place, float* out, float* weights) {
    const int dim = s.head_dim, group = s.heads / s.kv_heads, stride = s.kv_heads * dim;
    const int64_t from = ((int64_t)layer * s.positions + place.first) * stride;
    Attention a = {dim, place.position + 1 - place.first, stride, q, nullptr, nullptr, weights, out, s.positions};
    for (int shared = 0; shared < s.kv_heads; shared++) {
        a.keys = place.keys + from + shared * dim;
        a.values = place.values + from + shared * dim;
        for (int left = group, some; left > 0; left -= some) {
            some = left == 4 ? 2 : smaller(left, HEADS_AT_ONCE);
            if (some == 3) attend_heads<3>(a);
            else if (some == 2) attend_heads<2>(a);
            else attend_heads<1>(a);
            a.query += some * dim;
            a.out += some * dim;
        }
    }
}
// Normalises (if the layer does) and rotates queries and keys of one token, then stores its keys and values.
static inline void place_token(const Stack& s, int layer, const Place& place, const float* cosines, float* qkv) {
    const Layer& l = s.layers[layer];
    const int dim = s.head_dim, half = dim / 2, rotated = s.heads + s.kv_heads, stride = s.kv_heads * dim;
    const float* sines = cosines + half;
    for (int h = 0; h < rotated; h++) {
        float* x = qkv + h * dim;
        if (l.qk_norm) rms(x, l.qk_norm + h * dim, dim, s.epsilon, x);
        by_vector(half, [&](int i, int n) {
            vf a = ld(x + i, n), b = ld(x + half + i, n), c = ld(cosines + i, n), d = ld(sines + i, n);
            st(x + i, a * c - b * d, n);
            st(x + half + i, b * c + a * d, n);
        });
    }
    const int64_t at = ((int64_t)layer * s.positions + place.position) * stride;
    memcpy(place.keys + at, qkv + s.heads * dim, stride * sizeof(float));
    memcpy(place.values + at, qkv + rotated * dim, stride * sizeof(float));
}
static inline void tell_scores(const Stack& s, const Scores& scores, int row, const Place& place, const float* q) {
    if (scores.windows[row] < 0) return;
    const int dim = s.head_dim, stride = s.kv_heads * dim;
    const float* query = q + scores.head * dim;
    const int64_t head = scores.head / (s.heads / s.kv_heads) * dim;
    const float* keys = place.keys + (int64_t)scores.layer * s.positions * stride + head;
    for (int i = 0; i < WINDOW; i++) {
        int64_t p = (int64_t)scores.windows[row] + i;
        vf sum = {};
        const float* key = keys + p * stride;
        if (p <= place.position) by_vector(dim, [&](int j, int n) { sum += ld(query + j, n) * ld(key + j, n); });
        scores.out[row * WINDOW + i] = p <= place.position ? hsum(sum) / sqrtf((float)dim) : -INFINITY;
    }
}
// x [rows][hidden] += scale * (y * matrix), or without scale. `spare` [rows][hidden] may be y if there is no scale.
static inline void residual(const Matrix& matrix, Pool* pool, const float* y, int64_t y_stride, int rows,
                            const float* scale, float* x, float* spare, float* whole) {
    const int hidden = matrix.outputs;
    if (!scale) return product(matrix, pool, y, y_stride, rows, 1, 0, x, x, hidden, whole);
    product(matrix, pool, y, y_stride, rows, 1, 0, nullptr, spare, hidden, whole);
    for (int r = 0; r < rows; r++)
        by_vector(hidden, [&](int i, int n) {
            float* at = x + (int64_t)r * hidden + i;
            st(at, ld(at, n) + ld(scale + i, n) * ld(spare + (int64_t)r * hidden + i, n), n);
        });
}
INLINE void swiglu(float* gate_up, int inner) {  // [gate | up] -> silu(gate) * up, in gate's place
    by_vector(inner, [&](int i, int n) {
        vf gate = ld(gate_up + i, n), up = ld(gate_up + inner + i, n);
        st(gate_up + i, gate / (all(1.f) + vexp(-gate)) * up, n);
    });
}
// Runs x [rows][hidden] through the layers and the final norm, in place. All keys and values of a layer are stored
// before a row attends, so rows of one call may follow each other in one cache. Rows share nothing else. In the last
// layer only the last `wanted` rows go on behind their keys and values; the others' x has no meaning then.
static inline void stack(const Stack& s, Pool* pool, int rows, float* x, const Place* places, const Scores* scores,
                         float* scratch, int wanted) {
    VIVAVOCE_ASSERT(0 <= wanted && wanted <= rows && (wanted == rows || !scores));
    const StackSizes n = sizes_of(s);
    const int hidden = s.hidden, half = s.head_dim / 2;
    float *whole = scratch, *y = whole + whole_floats(rows, n.inputs), *t = y + (int64_t)rows * hidden;
    float* attended = t + (int64_t)rows * n.wide;
    float *cosines = attended + (int64_t)rows * n.attended, *weights = cosines + (int64_t)rows * s.head_dim;
    auto normalise = [&](const float* weight, float* out) {
        by_row(pool, rows, hidden, [&](int64_t r) {
            rms(x + r * hidden, weight, hidden, s.epsilon, out + r * hidden);
        });
    };
    for (int r = 0; r < rows; r++) {
        VIVAVOCE_ASSERT(0 <= places[r].first && places[r].first <= places[r].position);
        VIVAVOCE_ASSERT(places[r].position < s.positions);
        for (int i = 0; i < half; i++) {
            float angle = (float)places[r].angle * s.frequencies[i];
            cosines[(int64_t)r * s.head_dim + i] = cosf(angle);
            cosines[(int64_t)r * s.head_dim + half + i] = sinf(angle);
        }
    }
    for (int layer = 0; layer < s.count; layer++) {
        const Layer& l = s.layers[layer];
        normalise(l.norm_1, y);
        product(l.qkv, pool, y, hidden, rows, 1, 0, nullptr, t, n.qkv, whole);
        by_row(pool, rows, n.qkv, [&](int r) {
            place_token(s, layer, places[r], cosines + (int64_t)r * s.head_dim, t + (int64_t)r * n.qkv);
        });
        if (layer == s.count - 1 && wanted < rows) {
            if (wanted == 0) return;
            const int64_t skipped = rows - wanted;
            x += skipped * hidden, t += skipped * n.qkv, places += skipped;
            rows = wanted;
        }
        for (int from = 0; from < rows; from += ATTENTION_ROWS) {
            int some = smaller(ATTENTION_ROWS, rows - from), seen = places[from].position + 1 - places[from].first;
            by_row(pool, some, (int64_t)seen * n.attended, [&](int i) {
                int64_t r = from + i;
                attend(s, layer, t + r * n.qkv, places[r], attended + r * n.attended, weights + (int64_t)i * n.scores);
                if (scores && scores->layer == layer) tell_scores(s, *scores, (int)r, places[r], t + r * n.qkv);
            });
        }
        residual(l.out, pool, attended, n.attended, rows, l.scale_1, x, y, whole);
        normalise(l.norm_2, y);
        product(l.gate_up, pool, y, hidden, rows, 1, 0, nullptr, t, 2 * s.inner, whole);
        by_row(pool, rows, s.inner, [&](int r) { swiglu(t + (int64_t)r * 2 * s.inner, s.inner); });
        residual(l.down, pool, t, 2 * s.inner, rows, l.scale_2, x, y, whole);
    }
    normalise(s.norm, x);
}
