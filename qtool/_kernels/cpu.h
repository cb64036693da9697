/* Which instructions may be used here: CPUID says what the core has, XCR0 what the operating system saves.
 *
 * Both are needed: on a machine that masks zmm or tile state, CPUID alone leads to SIGILL. The answer is a mask, not a
 * level: AVX-VNNI and AVX-512-VNNI do not imply each other (Alder Lake, Ice Lake).
 *
 * AMX: the bits say that the hardware and XCR0 have tiles. A process also needs the permission of the operating system,
 * which changes the process for good: set_isa() of _core.pyx asks (amx_permission.h) the first time it would choose a
 * kernel with tiles, and passes over them where it is refused.
 */
#ifndef QT_CPU_H
#define QT_CPU_H

#include <stdint.h>

/* Features, named as in /proc/cpuinfo. */
enum {
    QT_CPU_AVX2 = 1u << 0,
    QT_CPU_AVX_VNNI = 1u << 1,
    QT_CPU_AVX512F = 1u << 2,
    QT_CPU_AVX512DQ = 1u << 3,
    QT_CPU_AVX512BW = 1u << 4,
    QT_CPU_AVX512VL = 1u << 5,
    QT_CPU_AVX512_VNNI = 1u << 6,
    QT_CPU_AMX_TILE = 1u << 7,
    QT_CPU_AMX_INT8 = 1u << 8,
    QT_CPU_F16C = 1u << 9,
    QT_CPU_AMX = QT_CPU_AMX_TILE | QT_CPU_AMX_INT8,
    QT_CPU_AVX512_ALL = QT_CPU_AVX512F | QT_CPU_AVX512DQ | QT_CPU_AVX512BW | QT_CPU_AVX512VL | QT_CPU_AVX512_VNNI,
};

typedef struct {
    const char *name;
    uint32_t mask;
} qt_named_mask;

static const qt_named_mask QT_CPU_FEATURES[] = {
    {"f16c", QT_CPU_F16C},
    {"avx2", QT_CPU_AVX2},
    {"avx_vnni", QT_CPU_AVX_VNNI},
    {"avx512f", QT_CPU_AVX512F},
    {"avx512dq", QT_CPU_AVX512DQ},
    {"avx512bw", QT_CPU_AVX512BW},
    {"avx512vl", QT_CPU_AVX512VL},
    {"avx512_vnni", QT_CPU_AVX512_VNNI},
    {"amx_tile", QT_CPU_AMX_TILE},
    {"amx_int8", QT_CPU_AMX_INT8},
};
enum { QT_CPU_FEATURE_COUNT = sizeof(QT_CPU_FEATURES) / sizeof(QT_CPU_FEATURES[0]) };

/* The values of QTOOL_ISA, weakest first, each with the features its kernels need. A cap admits itself and all before it. */
typedef enum { QT_ISA_SCALAR, QT_ISA_AVX2, QT_ISA_AVXVNNI, QT_ISA_AVX512VNNI, QT_ISA_AMX_INT8, QT_ISA_COUNT } qt_isa;

static const qt_named_mask QT_ISAS[QT_ISA_COUNT] = {
    {"scalar", 0},
    {"avx2", QT_CPU_AVX2 | QT_CPU_F16C},
    {"avxvnni", QT_CPU_AVX2 | QT_CPU_F16C | QT_CPU_AVX_VNNI},
    {"avx512vnni", QT_CPU_AVX2 | QT_CPU_F16C | QT_CPU_AVX512_ALL},
    {"amx_int8", QT_CPU_AVX2 | QT_CPU_F16C | QT_CPU_AVX512_ALL | QT_CPU_AMX}, /* it packs with AVX-512 */
};

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))

#include <cpuid.h>

static uint64_t qt_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0)); /* not _xgetbv: that needs -mxsave */
    return ((uint64_t)high << 32) | low;
}

static uint32_t qt_detect_cpu(void) {
    uint32_t a, b, c, d, mask = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & (1u << 27))) return 0; /* OSXSAVE: without it there is no XCR0 */
    const uint64_t saved = qt_xcr0();
    const int ymm = (saved & 0x6) == 0x6, zmm = (saved & 0xE6) == 0xE6, tile = (saved & 0x60000) == 0x60000;
    if (ymm && (c & (1u << 29))) mask |= QT_CPU_F16C;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return 0;
    const uint32_t subleaves = a;
    if (ymm && (b & (1u << 5))) mask |= QT_CPU_AVX2;
    if (zmm && (b & (1u << 16))) mask |= QT_CPU_AVX512F;
    if (zmm && (b & (1u << 17))) mask |= QT_CPU_AVX512DQ;
    if (zmm && (b & (1u << 30))) mask |= QT_CPU_AVX512BW;
    if (zmm && (b & (1u << 31))) mask |= QT_CPU_AVX512VL;
    if (zmm && (c & (1u << 11))) mask |= QT_CPU_AVX512_VNNI;
    if (tile && (d & (1u << 24))) mask |= QT_CPU_AMX_TILE;
    if (tile && (d & (1u << 25))) mask |= QT_CPU_AMX_INT8;
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && ymm && (a & (1u << 4))) mask |= QT_CPU_AVX_VNNI;
    return mask;
}

#else

static uint32_t qt_detect_cpu(void) { return 0; }

#endif

static int qt_openmp(void) {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

#endif
