/* Saturating pairs in plain C: the definition, and what other architectures run. */
#ifndef QT_SATURATING_SCALAR_H
#define QT_SATURATING_SCALAR_H

static void qt_saturating_run__scalar(const uint8_t *a, ptrdiff_t lda, ptrdiff_t rows, ptrdiff_t k, const char *panel,
                                      const uint8_t *can, int32_t *out, ptrdiff_t ldo, ptrdiff_t cols, int64_t *counts) {
    const ptrdiff_t pairs = (k + 1) / 2;
    for (ptrdiff_t row = 0; row < rows; ++row, a += lda) {
        uint32_t sum[QT_SATURATING_COLUMNS] = {0}; /* unsigned: the sum wraps, as VPADDD does */
        for (ptrdiff_t p = 0; p < pairs; ++p) {
            const int32_t a0 = a[2 * p], a1 = 2 * p + 1 < k ? a[2 * p + 1] : 0;
            const int8_t *b = (const int8_t *)panel + p / 2 * 4 * QT_SATURATING_COLUMNS + p % 2 * 2;
            const int count = counts && can[p / 2];
            for (int c = 0; c < QT_SATURATING_COLUMNS; ++c) {
                const int32_t exact = a0 * b[4 * c] + a1 * b[4 * c + 1];
                const int32_t pair = exact > INT16_MAX ? INT16_MAX : exact < INT16_MIN ? INT16_MIN : exact;
                sum[c] += (uint32_t)pair;
                if (count) counts[c] += pair != exact;
            }
        }
        if (out) memcpy(out + row * ldo, sum, (size_t)cols * sizeof(int32_t));
    }
}

static const qt_saturating qt_saturating_rows__scalar = {
    .name = "rows__scalar", .isa = QT_ISA_SCALAR, .run = qt_saturating_run__scalar};

#endif
