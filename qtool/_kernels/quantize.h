/* The table of rows for quantizing: x / s to codes, the range of x, and codes to a dense stream.
 *
 * A run is n neighbouring elements whose scale index moves by one every `block` elements, from the first element on:
 * block >= n is one scale (per tensor, axis 0), block == 1 a scale for each element (last axis, blocks along an outer
 * axis), anything between is blocks along the last axis. s and z point at the first scale and zero point of the run.
 * The tasks of _core.pyx cut a tensor into runs.
 *
 * quantize_loops.h is all of it in plain C, included once per row with the row's target attribute, so that the compiler
 * vectorises it for that instruction set; a header of a row replaces what it can do better. To add an ISA: one header
 * that defines qt_quantize_<name> and one line in quantize.inc.
 */
#ifndef QT_QUANTIZE_H
#define QT_QUANTIZE_H

#include "cpu.h"
#include "elements.h"

typedef struct {
    const char *name;
    qt_isa isa;
    /* t[n] = x[start..start+n) of element type `source`, rounded once to `precision`, as float32. */
    void (*load)(const void *x, int source, int precision, ptrdiff_t start, ptrdiff_t n, float *t);
    /* y[n] = the bits of saturate(rint(x / s) + z); the quotient is rounded to `precision`. */
    void (*codes8)(const float *x, const float *s, const int32_t *z, ptrdiff_t block, int precision, qt_integer type,
                   ptrdiff_t n, uint8_t *y);
    void (*codes16)(const float *x, const float *s, const int32_t *z, ptrdiff_t block, int precision, qt_integer type,
                    ptrdiff_t n, uint16_t *y);
    /* y[n] = the small float nearest to x / s + z. */
    void (*floats)(const float *x, const float *s, const float *z, ptrdiff_t block, int precision,
                   const qt_small_float *form, uint32_t overflow, ptrdiff_t n, uint8_t *y);
    /* Widens [*lo, *hi] by x[n]; NaN never enters (a comparison with it is false). */
    void (*range)(const float *x, ptrdiff_t n, float *lo, float *hi);
    /* n groups of 8 / bits (4 for 6 bits) codes to 1 (3) bytes each, low bits first. */
    void (*pack)(const uint8_t *codes, int bits, ptrdiff_t n, uint8_t *raw);
} qt_quantize;

#include "quantize_scalar.h"
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "quantize_avx2.h"
#include "quantize_avx512vnni.h"
#endif

static const qt_quantize *const QT_QUANTIZE[] = {
#define QT_ROW(name) &qt_quantize_##name,
#include "quantize.inc"
#undef QT_ROW
};
enum { QT_QUANTIZE_COUNT = sizeof(QT_QUANTIZE) / sizeof(QT_QUANTIZE[0]) };

/* The first row, best first, that the cap admits and the processor has. The scalar row always qualifies. */
static const qt_quantize *qt_choose_quantize(uint32_t features, qt_isa cap) {
    for (int i = 0; i < QT_QUANTIZE_COUNT; ++i) {
        const uint32_t need = QT_ISAS[QT_QUANTIZE[i]->isa].mask;
        if (QT_QUANTIZE[i]->isa <= cap && (features & need) == need) return QT_QUANTIZE[i];
    }
    return QT_QUANTIZE[QT_QUANTIZE_COUNT - 1];
}

#endif
