/* What the multiply-add units do at most: dot products on registers, no memory. A kernel is judged by its share of that.
 *
 *   name      instruction          per instruction            chains
 *   vnni      vpdpbusd zmm         16 lanes x 4 products      16, latency 5, two ports: 10 would do
 *   avxvnni   vpdpbusd ymm          8 lanes x 4 products      12
 *   amx       tdpbusd              16 x 16 x 64 products       4, latency 52, one every 16 cycles
 *
 * The loops are assembly: compilers move accumulators of intrinsics through memory. Operands are zero; the time of these
 * instructions does not depend on the data. An operation is a multiplication or an addition.
 */
#ifndef QT_PEAK_H
#define QT_PEAK_H

#include <stddef.h>
#include <stdint.h>

#include "cpu.h"

typedef struct {
    const char *name;
    qt_isa isa;
    int64_t operations;            /* per turn of the loop */
    void (*run)(ptrdiff_t turns);
} qt_peak;

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#define QT_PEAK_4(OP, S, A, B, C, D) OP " %%" S "30, %%" S "31, %%" S A "\n" OP " %%" S "30, %%" S "31, %%" S B "\n" \
                                     OP " %%" S "30, %%" S "31, %%" S C "\n" OP " %%" S "30, %%" S "31, %%" S D "\n"

__attribute__((target("avx512f,avx512vnni"), noinline)) static void qt_peak_vnni__avx512vnni(ptrdiff_t turns) {
    __asm__ volatile(
        "vpxord %%zmm30, %%zmm30, %%zmm30\n"
        "vpxord %%zmm31, %%zmm31, %%zmm31\n"
        "1:\n" QT_PEAK_4("vpdpbusd", "zmm", "0", "1", "2", "3") QT_PEAK_4("vpdpbusd", "zmm", "4", "5", "6", "7")
            QT_PEAK_4("vpdpbusd", "zmm", "8", "9", "10", "11") QT_PEAK_4("vpdpbusd", "zmm", "12", "13", "14", "15")
        "dec %0\n"
        "jnz 1b\n"
        "vzeroupper\n"
        : "+r"(turns)
        :
        : "cc", "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7", "zmm8", "zmm9", "zmm10", "zmm11", "zmm12",
          "zmm13", "zmm14", "zmm15", "zmm30", "zmm31");
}

#define QT_PEAK_V(A) "%{vex%} vpdpbusd %%ymm14, %%ymm15, %%ymm" A "\n"

__attribute__((target("avx2,avxvnni"), noinline)) static void qt_peak_vnni__avxvnni(ptrdiff_t turns) {
    __asm__ volatile(
        "vpxor %%ymm14, %%ymm14, %%ymm14\n"
        "vpxor %%ymm15, %%ymm15, %%ymm15\n"
        "1:\n" QT_PEAK_V("0") QT_PEAK_V("1") QT_PEAK_V("2") QT_PEAK_V("3") QT_PEAK_V("4") QT_PEAK_V("5") QT_PEAK_V("6")
            QT_PEAK_V("7") QT_PEAK_V("8") QT_PEAK_V("9") QT_PEAK_V("10") QT_PEAK_V("11")
        "dec %0\n"
        "jnz 1b\n"
        "vzeroupper\n"
        : "+r"(turns)
        :
        : "cc", "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11", "ymm14",
          "ymm15");
}

/* Palette 1: eight tiles of 16 rows of 64 bytes. The caller has asked for permission (amx_permission.h). */
__attribute__((target("amx-tile,amx-int8"), noinline)) static void qt_peak_amx__amx_int8(ptrdiff_t turns) {
    uint8_t config[64] __attribute__((aligned(64))) = {1};
    for (int tile = 0; tile < 8; tile++) {
        config[16 + 2 * tile] = 64;
        config[48 + tile] = 16;
    }
    __asm__ volatile(
        "ldtilecfg %1\n"
        "1:\n"
        "tdpbusd %%tmm6, %%tmm4, %%tmm0\n"
        "tdpbusd %%tmm7, %%tmm4, %%tmm1\n"
        "tdpbusd %%tmm6, %%tmm5, %%tmm2\n"
        "tdpbusd %%tmm7, %%tmm5, %%tmm3\n"
        "dec %0\n"
        "jnz 1b\n"
        "tilerelease\n"
        : "+r"(turns)
        : "m"(config)
        : "cc", "memory");
}

static const qt_peak QT_PEAKS[] = {
    {"vnni", QT_ISA_AVX512VNNI, 16 * 16 * 4 * 2, qt_peak_vnni__avx512vnni},
    {"avxvnni", QT_ISA_AVXVNNI, 12 * 8 * 4 * 2, qt_peak_vnni__avxvnni},
    {"amx", QT_ISA_AMX_INT8, (int64_t)4 * 16 * 16 * 64 * 2, qt_peak_amx__amx_int8},
};
enum { QT_PEAK_COUNT = sizeof(QT_PEAKS) / sizeof(QT_PEAKS[0]) };

#else

static const qt_peak QT_PEAKS[] = {{"", QT_ISA_SCALAR, 0, NULL}};
enum { QT_PEAK_COUNT = 0 };

#endif

#endif
