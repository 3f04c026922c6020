// SPDX-License-Identifier: GPL-2.0-only
/* A relocation for which two kernel types give different values: loading must be refused. */
#include "mini.h"

struct torn { u32 b; } __core;

SEC("syscall") u64 ambiguous(struct torn *p) { return p->b; }

char _license[] SEC("license") = "GPL";
