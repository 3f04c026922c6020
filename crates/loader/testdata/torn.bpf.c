// SPDX-License-Identifier: GPL-2.0-only
/* A relocation that two kernel types answer differently: loading must be refused. */
#include "mini.h"

struct torn { u32 b; } __core;

SEC("syscall") u64 ambiguous(struct torn *p) { return p->b; }

char _license[] SEC("license") = "GPL";
