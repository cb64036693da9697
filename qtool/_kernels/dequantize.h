/* The table of rows for dequantizing: (x - z) * s of codes, to float32 or a half precision, and a dense stream to codes.
 *
 * Runs are those of quantize.h, and so is the scheme: dequantize_loops.h is all of it in plain C, included once per row.
 * To add an ISA: one header that defines qt_dequantize_<name> and one line in dequantize.inc.
 */
#ifndef QT_DEQUANTIZE_H
#define QT_DEQUANTIZE_H

#include "cpu.h"
#include "elements.h"

typedef struct {
    const char *name;
    qt_isa isa;
    /* y[n] = (x[start..start+n) - z) * s of element type `source`; `table` has the values of the 256 bytes for the
     * sources QT_TABLE and QT_TABLE4. With `stream`, stores may pass the cache by (the run ends with a fence). */
    void (*singles)(const void *x, int source, const float *table, const float *s, const float *z, ptrdiff_t block,
                    int stream, ptrdiff_t start, ptrdiff_t n, float *y);
    /* y[n] = d * s, rounded once to bfloat16 if `brain`, else float16. */
    void (*halves)(const float *d, const float *s, ptrdiff_t block, int brain, ptrdiff_t n, uint16_t *y);
    /* n groups of 1 (3 for 6 bits) bytes to 8 / bits (4) codes each. */
    void (*unpack)(const uint8_t *raw, int bits, ptrdiff_t n, uint8_t *codes);
} qt_dequantize;

#include "dequantize_scalar.h"
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "dequantize_avx2.h"
#include "dequantize_avx512vnni.h"
#endif

static const qt_dequantize *const QT_DEQUANTIZE[] = {
#define QT_ROW(name) &qt_dequantize_##name,
#include "dequantize.inc"
#undef QT_ROW
};
enum { QT_DEQUANTIZE_COUNT = sizeof(QT_DEQUANTIZE) / sizeof(QT_DEQUANTIZE[0]) };

/* The first row, best first, that the cap admits and the processor has. The scalar row always qualifies. */
static const qt_dequantize *qt_choose_dequantize(uint32_t features, qt_isa cap) {
    for (int i = 0; i < QT_DEQUANTIZE_COUNT; ++i) {
        const uint32_t need = QT_ISAS[QT_DEQUANTIZE[i]->isa].mask;
        if (QT_DEQUANTIZE[i]->isa <= cap && (features & need) == need) return QT_DEQUANTIZE[i];
    }
    return QT_DEQUANTIZE[QT_DEQUANTIZE_COUNT - 1];
}

#endif
