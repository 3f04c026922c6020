/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A knob with its meaning, declared once. The object carries the meaning in its BTF, as a tag of
 * the variable: `scxlab inspect`, completions and the table of the scheduler's README show it.
 */
#ifndef SCXLAB_KNOB_H
#define SCXLAB_KNOB_H

#define KNOB(type, name, value, meaning) \
	const volatile type name __attribute__((btf_decl_tag("knob: " meaning))) = value

#endif
