/* The table of 8-bit matrix micro-kernels: C[m,n] += sum_k A'[m,k] * B'[k,n], A' unsigned, B' signed, C modulo 2^32.
 *
 * One operand form serves all four sign pairs. A signed A is stored as A' = A ^ 0x80 = A + 128, an unsigned B as
 * B' = B ^ 0x80 = B - 128; the zero points shift alike, so (A' - za') * (B' - zb') is what it was. Zero points never
 * enter the product (docs/quantization.md eq. 3):
 *
 *     sum (A' - za')(B' - zb') = sum A'B' - za' * colsum(B') - zb' * rowsum(A') + K * za' * zb'        (mod 2^32)
 *
 * The packers compute the sums, where they cost nothing. A kernel is never chosen without its packers: a row holds all.
 *
 * To add an ISA: one header that defines qt_gemm_u8s8_<name> and one line in gemm_u8s8.inc.
 */
#ifndef QT_GEMM_U8S8_H
#define QT_GEMM_U8S8_H

#include <stddef.h>
#include <stdint.h>

#include "cpu.h"
#include "requantize.h"

/* acc = (first ? 0 : acc) + A panel * B panel, and on the way the end of an earlier tile, where it costs least. */
typedef struct {
    ptrdiff_t kc; /* padded K of the slice */
    const void *a, *b;
    ptrdiff_t a_ld; /* A is not packed: bytes from row to row. 0: packed. Only whole panels, of a kernel with `in_place` */
    ptrdiff_t rows; /* of the panel of A, that exist */
    int first;
    int a_passes; /* B is what the next calls need again: A should not drive it out of L1 */
    uint32_t *acc; /* [mr][nr] */
    const uint32_t *start; /* [nr] with `first`: what each row begins with; NULL: 0. For rows with `stores` or `ends` */
    uint32_t *out;         /* where the sums go instead of acc, NULL: acc. The same */
    ptrdiff_t out_ld;
    const qt_tile_end *earlier; /* NULL: none */
    const qt_tile_end *own; /* the end of this tile, whose columns are in `start`. NULL: none. Only for a row with `ends` */
    const char *ahead; /* ahead_bytes to bring into L2: B of calls to come */
    ptrdiff_t ahead_bytes;
} qt_tile;

typedef struct {
    const char *name; /* <mr>x<nr>c<kr>__<isa> */
    qt_isa isa;
    int mr, nr, kr;      /* rows and columns of a tile; K is padded with zeros to a multiple of kr */
    ptrdiff_t max_kc;    /* largest K block whose partial sums the kernel keeps exact */
    ptrdiff_t a_size;    /* bytes of one packed element of A */
    ptrdiff_t b_size;    /* bytes of one packed element of B */
    /* Packs rows x kc of A (byte strides) into panels of mr rows, XOR flip; adds to rowsum[rows]. Pads K by 0; rows that do
     * not exist may stay as they are, since no other row depends on them. */
    void (*pack_a)(const uint8_t *a, ptrdiff_t row_stride, ptrdiff_t k_stride, ptrdiff_t rows, ptrdiff_t kc,
                   uint8_t flip, void *packed, uint32_t *rowsum);
    /* The same for kc x cols of B and panels of nr columns. */
    void (*pack_b)(const uint8_t *b, ptrdiff_t k_stride, ptrdiff_t col_stride, ptrdiff_t cols, ptrdiff_t kc,
                   uint8_t flip, void *packed, uint32_t *colsum);
    /* c[mr][nr] += A panel * B panel; kc is the padded K of the block. */
    void (*run)(ptrdiff_t kc, const void *a, const void *b, uint32_t *c, ptrdiff_t ldc);
    /* Around run(), once per thread and task: state that the kernel needs in its thread. NULL: none. */
    void (*begin)(void);
    void (*end)(void);
    /* Optional, both or none: the fused way. A row that has it packs panels that may be cut along K at multiples of kr.
     * finish: an end alone. */
    void (*tile)(const qt_tile *t);
    void (*finish)(const qt_tile_end *end);
    int in_place; /* tile() reads row-major A' that is not packed, if K is a multiple of kr */
    int stores; /* tile() can begin with terms of the columns and store a whole tile into an int32 result */
    int ends; /* the same for 8-bit results of all rows of a tile: nothing is left for the next tile */
    /* Optional: one row of A times row-major B that is not packed. acc[cols] += a[rows] * (B ^ flip) and colsum[cols] +=
     * B ^ flip, for `rows` <= stream_rows rows of B, k_stride bytes apart; a is a row of A', padded by 0 to whole dwords.
     * Between the calls the sums are in an order of the kernel's own, the call with `last` puts them right. Both are
     * padded to 64 columns, whose values mean nothing. */
    void (*stream)(const uint8_t *a, const uint8_t *b, ptrdiff_t k_stride, ptrdiff_t rows, ptrdiff_t cols, uint8_t flip,
                   int last, uint32_t *acc, uint32_t *colsum);
    ptrdiff_t stream_rows;
} qt_gemm_u8s8;

#include "amx_permission.h"
#include "gemm_u8s8_scalar.h"
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include "gemm_u8s8_amx_int8.h"
#include "gemm_u8s8_avx2.h"
#include "gemm_u8s8_avx512vnni.h"
#if __GNUC__ >= 11 || __clang_major__ >= 12
#include "gemm_u8s8_avxvnni.h"
#define QT_HAVE_AVXVNNI 1
#endif
#endif

static const qt_gemm_u8s8 *const QT_GEMM_U8S8[] = {
#define QT_UKERNEL(name) &qt_gemm_u8s8_##name,
#include "gemm_u8s8.inc"
#undef QT_UKERNEL
};
enum { QT_GEMM_U8S8_COUNT = sizeof(QT_GEMM_U8S8) / sizeof(QT_GEMM_U8S8[0]) };

/* The first row, best first, that the cap admits and the processor has. The scalar row always qualifies. */
static const qt_gemm_u8s8 *qt_choose_gemm_u8s8(uint32_t features, qt_isa cap) {
    for (int i = 0; i < QT_GEMM_U8S8_COUNT; ++i) {
        const uint32_t need = QT_ISAS[QT_GEMM_U8S8[i]->isa].mask;
        if (QT_GEMM_U8S8[i]->isa <= cap && (features & need) == need) return QT_GEMM_U8S8[i];
    }
    return QT_GEMM_U8S8[QT_GEMM_U8S8_COUNT - 1];
}

#endif
