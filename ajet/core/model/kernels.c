/* What kernels.py compiles: kernels.inc for float and for bfloat16, with sums in float. */

#include <math.h>
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

/* exp(x) for x <= 0, within 2 units in the last place: 2^n times a polynomial of the rest. Below
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

#define T float
#include "kernels.inc"
#undef T
#define T bfloat16
#include "kernels.inc"
