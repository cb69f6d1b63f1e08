/* What library.py compiles: each kernel for float and for bfloat16, with sums in float. */

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>

typedef uint16_t bfloat16;

#define CONCAT_(a, b) a##_##b
#define CONCAT(a, b) CONCAT_(a, b)
#define NAME(function) CONCAT(function, T)

static inline float wide_float(float x) { return x; }
static inline float narrow_float(float x) { return x; }

static inline float wide_bfloat16(bfloat16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float wide;
    memcpy(&wide, &bits, 4);
    return wide;
}

/* Rounds to the nearest, ties to even, as torch does. NaN stays NaN unless its payload is lost. */
static inline bfloat16 narrow_bfloat16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (bfloat16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* exp(x) for x <= 88, within 2 units in the last place: 2^n times a polynomial of the rest. Below
   -87 it is exp(-87), about 1e-38. The C library's own would not be computed for 16 at a time. */
static inline float exp_of_negative(float x)
{
    float scaled = (x < -87.0f ? -87.0f : x) * 1.44269504f;
    float whole = nearbyintf(scaled), rest = scaled - whole;
    float power = 1.535336188e-4f;
    power = power * rest + 1.339887440e-3f;
    power = power * rest + 9.618437357e-3f;
    power = power * rest + 5.550332548e-2f;
    power = power * rest + 2.402264791e-1f;
    power = power * rest + 6.931472028e-1f;
    power = power * rest + 1.0f;
    int32_t bits = ((int32_t)whole + 127) << 23;
    float scale;
    memcpy(&scale, &bits, 4);
    return power * scale;
}

/* Returns the largest of x and `least`; passes over NaN. In lanes, because the compiler may not
   change the order of comparisons where there may be NaN. */
static inline float largest_of(const float *x, long num, float least)
{
    enum { LANES = 16 };
    float largest[LANES];
    for (long i = 0; i < LANES; i++) largest[i] = least;
    long c = 0;
    for (; c + LANES <= num; c += LANES)
        for (long i = 0; i < LANES; i++) largest[i] = x[c + i] > largest[i] ? x[c + i] : largest[i];
    for (; c < num; c++) largest[0] = x[c] > largest[0] ? x[c] : largest[0];
    for (long i = 1; i < LANES; i++) largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
    return largest[0];
}

/* exp(x); below -87 it is exp(-87), above 88 exp(88). */
static inline float exp_of_any(float x)
{
    return exp_of_negative(x > 88.0f ? 88.0f : x);
}

/* exp(x) for x <= 0, and 0 where that is nothing beside 1. */
static inline float weight_of(float x)
{
    float weight = exp_of_negative(x);
    return x < -87.0f ? 0 : weight;
}

/* Products in tiles: of TILE rows (HEIGHT where both operands are packed) and 2 * LANES columns, whose sums stay
   in registers. GROUP columns of a row are multiplied at a time, so right operands hold as many rows beside
   each other. */
#if defined(__AVX512F__)
enum { LANES = 16, TILE = 8, HEIGHT = 12 };
#elif defined(__AVX__)
enum { LANES = 8, TILE = 4, HEIGHT = 6 };
#else
enum { LANES = 4, TILE = 8, HEIGHT = 6 };
#endif
enum { QUERIES = 2 * LANES, KEYS = 64, PART = 256, LINE = 64, BLOCK = 32, DRAWN = 256, DEPTH = 192 };
/* The columns of the table of segments, as in segments.py. */
enum { FIRST_QUERY, NUM_QUERIES, FIRST_KEY, NUM_KEYS, FIRST_CELL, PARENT, COLUMNS };
/* Sets the last of its segment's keys that each query sees; the queries behind the last see what that one does. */
static void last_keys(const int64_t *segment, long first, long num, long group, int *last)
{
    long before = segment[NUM_KEYS] - segment[NUM_QUERIES];
    for (long i = 0; i < QUERIES; i++) last[i] = before + (first + (i < num ? i : num - 1)) / group;
}
/* Returns the keys of a tile that are computed where so many are left: whole rows of TILE, at most KEYS. */
static inline long keys_of_tile(long left) { return left < KEYS ? (left + TILE - 1) / TILE * TILE : KEYS; }
typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t bits __attribute__((vector_size(4 * LANES)));

static inline lanes load(const float *x) { lanes loaded; memcpy(&loaded, x, sizeof loaded); return loaded; }
static inline void store(float *x, lanes stored) { memcpy(x, &stored, sizeof stored); }

typedef lanes packed_float;
static inline packed_float packed_at_float(const float *x) { return load(x); }
static inline lanes multiply_add_float(lanes sum, const float *left, packed_float right) { return sum + *left * right; }

typedef bits packed_bfloat16;
static inline packed_bfloat16 packed_at_bfloat16(const bfloat16 *x) { bits loaded; memcpy(&loaded, x, sizeof loaded); return loaded; }
static inline lanes multiply_add_bfloat16(lanes sum, const bfloat16 *left, packed_bfloat16 right)
{
#if defined(__AVX512BF16__)
    int32_t pair;
    memcpy(&pair, left, 4);
    return (lanes)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)right);
#else
    return sum + wide_bfloat16(left[0]) * (lanes)(right << 16) + wide_bfloat16(left[1]) * (lanes)(right & 0xffff0000u);
#endif
}

#define T float
#define WIDE wide_float
#define NARROW narrow_float
#define GROUP 1
#include "attention.inc"
#include "decode.inc"
#include "layers.inc"
#include "products.inc"
#undef T
#undef WIDE
#undef NARROW
#undef GROUP

#define T bfloat16
#define WIDE wide_bfloat16
#define NARROW narrow_bfloat16
#define GROUP 2
#include "attention.inc"
#include "decode.inc"
#include "layers.inc"
#include "products.inc"
