/* Statistics with the baseline instruction set: the loops of statistics_body.h as the compiler makes them. */
#ifndef QT_STATISTICS_SCALAR_H
#define QT_STATISTICS_SCALAR_H

#define QT_STATS(name) name##__scalar
#define QT_STATS_TARGET
#define QT_STATS_NAME "loops__scalar"
#define QT_STATS_ISA QT_ISA_SCALAR
#include "statistics_body.h"
#undef QT_STATS
#undef QT_STATS_TARGET
#undef QT_STATS_NAME
#undef QT_STATS_ISA

#endif
