/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Declares a knob, which is a read-only variable that a user may set before the load, together with
 * its meaning. The object carries the meaning in its BTF, as a tag of the variable:
 * `scxlab inspect`, shell completions and the table of the scheduler's README show it.
 */
#ifndef SCXLAB_KNOB_H
#define SCXLAB_KNOB_H

#define KNOB(type, name, value, meaning) \
	const volatile type name __attribute__((btf_decl_tag("knob: " meaning))) = value

#endif
