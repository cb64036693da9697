/* Micro-kernel 4x2c8__scalar: portable C, eight dot products at a time over int16.
 *
 * C[m,n] += sum_k A'[m,k] * B'[k,n]. Both operands are widened to int16 by the packer, because a sum of int16 products
 * along a contiguous K is the one form that compilers turn into PMADDWD (SSE2) or SMLAL (NEON) without intrinsics.
 * Not PMADDUBSW on the bytes: it saturates pairs (255*127*2 > 32767). Not more columns: 4x2 int32 accumulators are eight
 * vector registers, and with six operands and temporaries they fill the sixteen of the baseline.
 *
 * Exact: |A'B'| <= 255*128, so an int32 holds 65 793 products; K blocks are shorter, and blocks are added modulo 2^32.
 *
 * Packed layout of a panel, K padded to a multiple of 8:   row 0: k0 k1 k2 ...  | row 1: k0 k1 k2 ... | ...
 */
#ifndef QT_GEMM_U8S8_SCALAR_H
#define QT_GEMM_U8S8_SCALAR_H

/* One vector (row of A or column of B) along contiguous k. The sign of the source byte is the difference of A and B. */
#define QT_DEFINE_PACK_16(NAME, BYTE)                                                                                  \
    static void NAME(const uint8_t *restrict src, ptrdiff_t vector_stride, ptrdiff_t k_stride, ptrdiff_t vectors,      \
                     ptrdiff_t kc, ptrdiff_t panel, uint8_t flip, int16_t *restrict dst, uint32_t *restrict sums) {    \
        const ptrdiff_t padded = (kc + 7) & ~(ptrdiff_t)7;                                                             \
        const ptrdiff_t total = (vectors + panel - 1) / panel * panel;                                                 \
        if (k_stride == 1) {                                                                                           \
            for (ptrdiff_t i = 0; i < vectors; ++i) {                                                                  \
                const uint8_t *s = src + i * vector_stride;                                                            \
                int16_t *d = dst + i * padded;                                                                         \
                int32_t sum = 0;                                                                                       \
                for (ptrdiff_t k = 0; k < kc; ++k) {                                                                   \
                    d[k] = (int16_t)(BYTE)(uint8_t)(s[k] ^ flip);                                                      \
                    sum += d[k];                                                                                       \
                }                                                                                                      \
                for (ptrdiff_t k = kc; k < padded; ++k) d[k] = 0;                                                      \
                sums[i] += (uint32_t)sum;                                                                              \
            }                                                                                                          \
        } else { /* eight k at a time: few enough lines for any cache, even when k_stride is a power of two */         \
            for (ptrdiff_t k0 = 0; k0 < padded; k0 += 8) {                                                             \
                const uint8_t *s = src + k0 * k_stride;                                                                \
                int16_t *d = dst + k0;                                                                                 \
                for (ptrdiff_t i = 0; i < vectors; ++i, s += vector_stride, d += padded) {                             \
                    int32_t sum = 0;                                                                                   \
                    if (kc - k0 >= 8) /* a constant count: unrolled */                                                 \
                        for (int k = 0; k < 8; ++k) sum += d[k] = (int16_t)(BYTE)(uint8_t)(s[k * k_stride] ^ flip);    \
                    else                                                                                               \
                        for (int k = 0; k < 8; ++k)                                                                    \
                            sum += d[k] = k0 + k < kc ? (int16_t)(BYTE)(uint8_t)(s[k * k_stride] ^ flip) : 0;          \
                    sums[i] += (uint32_t)sum;                                                                          \
                }                                                                                                      \
            }                                                                                                          \
        }                                                                                                              \
        for (ptrdiff_t i = vectors * padded; i < total * padded; ++i) dst[i] = 0;                                      \
    }

QT_DEFINE_PACK_16(qt_pack_u8_16, uint8_t)
QT_DEFINE_PACK_16(qt_pack_s8_16, int8_t)
#undef QT_DEFINE_PACK_16

static void qt_pack_a_4c8__scalar(const uint8_t *a, ptrdiff_t row_stride, ptrdiff_t k_stride, ptrdiff_t rows,
                                  ptrdiff_t kc, uint8_t flip, void *packed, uint32_t *rowsum) {
    qt_pack_u8_16(a, row_stride, k_stride, rows, kc, 4, flip, (int16_t *)packed, rowsum);
}

static void qt_pack_b_2c8__scalar(const uint8_t *b, ptrdiff_t k_stride, ptrdiff_t col_stride, ptrdiff_t cols,
                                  ptrdiff_t kc, uint8_t flip, void *packed, uint32_t *colsum) {
    qt_pack_s8_16(b, col_stride, k_stride, cols, kc, 2, flip, (int16_t *)packed, colsum);
}

static void qt_gemm_run_4x2c8__scalar(ptrdiff_t kc, const void *a, const void *b, uint32_t *c, ptrdiff_t ldc) {
    const int16_t *restrict a0 = (const int16_t *)a, *restrict a1 = a0 + kc, *restrict a2 = a1 + kc,
                            *restrict a3 = a2 + kc;
    const int16_t *restrict b0 = (const int16_t *)b, *restrict b1 = b0 + kc;
    int32_t c00 = 0, c01 = 0, c10 = 0, c11 = 0, c20 = 0, c21 = 0, c30 = 0, c31 = 0;
    for (ptrdiff_t k = 0; k < kc; ++k) {
        c00 += (int32_t)a0[k] * b0[k];
        c01 += (int32_t)a0[k] * b1[k];
        c10 += (int32_t)a1[k] * b0[k];
        c11 += (int32_t)a1[k] * b1[k];
        c20 += (int32_t)a2[k] * b0[k];
        c21 += (int32_t)a2[k] * b1[k];
        c30 += (int32_t)a3[k] * b0[k];
        c31 += (int32_t)a3[k] * b1[k];
    }
    c[0] += (uint32_t)c00, c[1] += (uint32_t)c01, c += ldc;
    c[0] += (uint32_t)c10, c[1] += (uint32_t)c11, c += ldc;
    c[0] += (uint32_t)c20, c[1] += (uint32_t)c21, c += ldc;
    c[0] += (uint32_t)c30, c[1] += (uint32_t)c31;
}

static const qt_gemm_u8s8 qt_gemm_u8s8_4x2c8__scalar = {
    .name = "4x2c8__scalar",
    .isa = QT_ISA_SCALAR,
    .mr = 4,
    .nr = 2,
    .kr = 8,
    .max_kc = 65536,
    .a_size = 2,
    .b_size = 2,
    .pack_a = qt_pack_a_4c8__scalar,
    .pack_b = qt_pack_b_2c8__scalar,
    .run = qt_gemm_run_4x2c8__scalar,
};

#endif
