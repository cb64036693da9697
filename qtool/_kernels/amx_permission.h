/* The permission to use AMX tiles, asked of the operating system: 1 granted, 0 refused.
 *
 * Linux keeps tile state off until a process asks (arch_prctl ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA); the first tile
 * instruction without it is a SIGILL. It refuses if a thread has a signal stack too small for the tiles, and refuses small
 * signal stacks from then on. Elsewhere nobody refuses: XCR0 has spoken already.
 */
#ifndef QT_AMX_PERMISSION_H
#define QT_AMX_PERMISSION_H

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
static int qt_request_amx(void) { return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18) == 0; }
#else
static int qt_request_amx(void) { return 1; }
#endif

#endif
