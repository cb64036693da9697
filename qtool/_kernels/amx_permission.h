/* Leave to use tiles. Linux saves their 8 KB per thread only for processes that asked, and kills one that did not ask
 * at its first tile instruction; the answer of CPUID (__builtin_cpu_supports too) says nothing about it.
 *
 * Asking changes the process for good: from then on signal stacks must have room for the tiles. It is therefore done
 * when a tile kernel is about to be chosen, not at import, and it may be refused (a thread with a small sigaltstack).
 */
#ifndef QT_AMX_PERMISSION_H
#define QT_AMX_PERMISSION_H

#if defined(__x86_64__) && defined(__linux__)

#include <sys/syscall.h>
#include <unistd.h>

/* 1 if this process may use tiles, now or already. Threads that exist and those to come are both covered. */
static int qt_request_amx(void) {
    enum { ARCH_GET_XCOMP_PERM = 0x1022, ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_TILEDATA = 18 };
    unsigned long granted = 0;
    if (syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILEDATA)) return 0;
    if (syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &granted)) return 0;
    return (int)(granted >> XFEATURE_TILEDATA & 1);
}

#else

static int qt_request_amx(void) { return 0; }

#endif

#endif
