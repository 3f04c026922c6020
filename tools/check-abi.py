#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Compares the simulated kernel's ABI with a real kernel's BTF and with real objects.

usage: check-abi.py ABI_OBJECT VMLINUX [OBJECT...]

ABI_OBJECT is crates/kernel/abi/abi.bpf.c, compiled. Against a kernel: every kernel function has the same
prototype, every field exists with the same kind and size, every enumerator has the same value, and
what programs own has the same layout. Against objects: every field, type and enumerator they relocate against
resolves, unless the real kernel lacks it too.
Prints one line per difference; exits 1 if there is one.
"""
import argparse
import re
import struct
import sys

INT, PTR, ARRAY, STRUCT, UNION, ENUM, FWD, TYPEDEF = 1, 2, 3, 4, 5, 6, 7, 8
VOLATILE, CONST, RESTRICT, FUNC, PROTO, VAR, DATASEC = 9, 10, 11, 12, 13, 14, 15
FLOAT, DECL_TAG, TYPE_TAG, ENUM64 = 16, 17, 18, 19
WRAPPERS = (TYPEDEF, VOLATILE, CONST, RESTRICT, TYPE_TAG)
# Size in bytes of what follows the 12-byte head of a BTF type, by kind: a fixed part, and a part
# per element (member, enumerator or parameter).
TAIL = {INT: (4, 0), ARRAY: (12, 0), STRUCT: (0, 12), UNION: (0, 12), ENUM: (0, 8), PROTO: (0, 8),
        VAR: (4, 0), DATASEC: (0, 12), DECL_TAG: (4, 0), ENUM64: (0, 12)}

# Structs that programs place on their stacks or in their maps, or whose layout is an interface.
# Their size and the offsets of their fields must equal the kernel's.
OWNED = """sched_ext_ops sched_ext_ops_cid scx_exit_info scx_init_task_args scx_exit_task_args
scx_enable_args scx_cgroup_init_args scx_cpu_acquire_args scx_cpu_release_args scx_sub_attach_args
scx_sub_detach_args scx_dump_ctx scx_event_stats scx_bpf_dsq_insert_vtime_args scx_bpf_select_cpu_and_args
scx_cid_topo scx_cmask cpumask bpf_iter_num bpf_iter_scx_dsq bpf_iter_css bpf_iter_css_task bpf_iter_task
bpf_iter_bits bpf_timer bpf_spin_lock bpf_res_spin_lock bpf_rb_root bpf_rb_node bpf_list_head bpf_list_node
bpf_refcount bpf_dynptr bpf_perf_event_value list_head bpf_iter_meta bpf_iter__task""".split()


# Fields that objects access only if a weak symbol exists. The simulated kernel lacks the symbol, so
# objects do not access the fields there (docs/internals/fidelity.md).
GUARDED = {"tick_device.evtdev", "clock_event_device.next_event"}


class Type:
    def __init__(self, name, kind, flag, size, body):
        self.name, self.kind, self.flag, self.size, self.body = name, kind, flag, size, body


class Btf:
    def __init__(self, blob):
        magic, _, _, head, type_off, type_len, str_off, str_len = struct.unpack_from("<HBBIIIII", blob)
        if magic != 0xEB9F:
            sys.exit("no BTF in there")
        self.strings = blob[head + str_off:head + str_off + str_len]
        self.types = [Type("void", 0, 0, 0, b"")]
        at, end = head + type_off, head + type_off + type_len
        while at < end:
            name, info, size = struct.unpack_from("<III", blob, at)
            kind, count = info >> 24 & 31, info & 0xFFFF
            fixed, each = TAIL.get(kind, (0, 0))
            length = fixed + each * count
            body = blob[at + 12:at + 12 + length]
            self.types.append(Type(self.string(name), kind, info >> 31, size, body))
            at += 12 + length
        self.by_name, self.names = {}, set()
        for number, one in enumerate(self.types):
            self.by_name.setdefault((one.kind, one.name), number)

    def string(self, off):
        return self.strings[off:self.strings.index(b"\0", off)].decode()

    def bare(self, number):
        while self.types[number].kind in WRAPPERS:
            number = self.types[number].size
        return number

    def members(self, number):
        """(name, type, bit offset), as declared."""
        one = self.types[number]
        for name, of, off in struct.iter_unpack("<III", one.body):
            yield self.string(name), of, off & 0xFFFFFF if one.flag else off

    def flat(self, number, base=0):
        """Members by name, those of anonymous structs included."""
        found = {}
        for name, of, off in self.members(number):
            if name:
                found[name] = (of, base + off)
            elif self.types[self.bare(of)].kind in (STRUCT, UNION):
                found.update(self.flat(self.bare(of), base + off))
        return found

    def array(self, number):
        return struct.unpack("<III", self.types[number].body)

    def enumerators(self, number):
        one = self.types[number]
        if one.kind == ENUM:
            return {self.string(n): v & 0xFFFFFFFF for n, v in struct.iter_unpack("<II", one.body)}
        return {self.string(n): lo | hi << 32 for n, lo, hi in struct.iter_unpack("<III", one.body)}

    def all_enumerators(self):
        if not self.names:
            self.names = {n for i, t in enumerate(self.types) if t.kind in (ENUM, ENUM64)
                          for n in self.enumerators(i)}
        return self.names

    def size(self, number):
        number = self.bare(number)
        one = self.types[number]
        if one.kind == PTR:
            return 8
        if one.kind == ARRAY:
            of, _, count = self.array(number)
            return self.size(of) * count
        return 0 if one.kind in (FWD, PROTO, FUNC) else one.size

    def spell(self, number, depth=3):
        """What a parameter or a field is, without typedefs and qualifiers."""
        number = self.bare(number)
        one = self.types[number]
        if one.kind == PTR:
            return (self.spell(one.size, depth - 1) if depth else "") + "*"
        if one.kind == PROTO:
            given = [self.spell(of, depth - 1) for _, of in struct.iter_unpack("<II", one.body)]
            return f"{self.spell(one.size, depth - 1)}({', '.join(given)})"
        if one.kind == INT:
            return f"int{one.size * 8}"
        if one.kind in (ENUM, ENUM64):
            return f"enum{one.size * 8}"
        return one.name or f"kind {one.kind}"

    def composite(self, name):
        return self.by_name.get((STRUCT, name)) or self.by_name.get((UNION, name))


def sections(blob):
    """Name -> bytes of an ELF64 file."""
    off, = struct.unpack_from("<Q", blob, 40)
    entry, count, names = struct.unpack_from("<HHH", blob, 58)
    heads = [struct.unpack_from("<IIQQQQ", blob, off + entry * i) for i in range(count)]
    table = heads[names][4]
    return {blob[table + h[0]:blob.index(b"\0", table + h[0])].decode(): blob[h[4]:h[4] + h[5]]
            for h in heads if h[1] != 8}


def relocations(ext):
    """(type, access string offset, kind) of every CO-RE relocation."""
    head, = struct.unpack_from("<I", ext, 4)
    if head < 32:
        return
    off, length = struct.unpack_from("<II", ext, 24)
    at, end = head + off, head + off + length
    record, = struct.unpack_from("<I", ext, at)
    at += 4
    while at < end:
        _, count = struct.unpack_from("<II", ext, at)
        at += 8
        for i in range(count):
            yield struct.unpack_from("<IIII", ext, at + i * record)[1:]
        at += count * record


def essence(name):
    return re.sub(r"___.*$", "", name)


def walk(local, root, access, target):
    """Follows a field access by name; (text of the path, whether the target has it)."""
    steps = [int(s) for s in access.split(":")]
    here = local.bare(root)
    path, found = essence(local.types[here].name), True
    if local.types[here].kind not in (STRUCT, UNION):
        return path, True
    there = target.composite(path) if path else None
    if not path:
        there = next((target.bare(n) for n, t in enumerate(target.types)
                      if t.kind == TYPEDEF and t.name == essence(local.types[root].name)), None)
        path = local.types[root].name
    for step in steps[1:]:
        one = local.types[here]
        if one.kind == ARRAY:
            path, here = f"{path}[{step}]", local.bare(local.array(here)[0])
            if there is not None:
                there = target.bare(there)
                of, _, count = target.array(there) if target.types[there].kind == ARRAY else (0, 0, -1)
                there = target.bare(of) if count == 0 or step < count else None
            continue
        name, of, _ = list(local.members(here))[step]
        here = local.bare(of)
        if not name:
            continue
        path = f"{path}.{name}"
        if there is not None:
            there = target.bare(there)
            fields = target.flat(there) if target.types[there].kind in (STRUCT, UNION) else {}
            there = target.bare(fields[name][0]) if name in fields else None
    return path, there is not None and found


def check_functions(abi, kernel, complain):
    for number, one in enumerate(abi.types):
        if one.kind == FUNC:
            real = kernel.by_name.get((FUNC, one.name))
            if real is None:
                complain(f"{one.name}: no such kernel function")
                continue
            ours, theirs = abi.spell(one.size), kernel.spell(kernel.types[real].size)
            if ours != theirs:
                complain(f"{one.name}: {ours}, in the kernel {theirs}")
        if one.kind == VAR and not one.name.startswith("abi_"):
            real = kernel.by_name.get((VAR, one.name))
            if real is None:
                complain(f"{one.name}: no such kernel variable")
            elif abi.spell(one.size) != kernel.spell(kernel.types[real].size):
                complain(f"{one.name}: a variable of another type in the kernel")


def check_fields(abi, kernel, complain):
    for number, one in enumerate(abi.types):
        if one.kind != STRUCT or not one.name:
            continue
        real = kernel.composite(one.name)
        if real is None:
            complain(f"struct {one.name}: not in the kernel")
            continue
        theirs = kernel.flat(real)
        owned = one.name in OWNED
        if owned and one.size != kernel.types[real].size:
            complain(f"struct {one.name}: {one.size} bytes, in the kernel {kernel.types[real].size}")
        if owned and len(abi.flat(number)) < len([n for n in theirs if n != "__end"]):
            complain(f"struct {one.name}: members missing")
        for name, (of, off) in abi.flat(number).items():
            if name not in theirs:
                complain(f"{one.name}.{name}: not in the kernel")
                continue
            its, its_off = theirs[name]
            if owned and off != its_off:
                complain(f"{one.name}.{name}: at {off // 8}, in the kernel at {its_off // 8}")
            check_field(abi, kernel, f"{one.name}.{name}", of, its, complain)


def check_field(abi, kernel, where, of, its, complain):
    mine, real = abi.types[abi.bare(of)], kernel.types[kernel.bare(its)]
    if mine.kind != real.kind and {mine.kind, real.kind} != {ENUM, ENUM64}:
        if not (mine.kind == PTR and real.kind == UNION):
            complain(f"{where}: another kind of type in the kernel")
    elif mine.kind in (INT, ENUM, PTR) and abi.size(of) != kernel.size(its):
        complain(f"{where}: {abi.size(of)} bytes, in the kernel {kernel.size(its)}")
    elif mine.kind == PTR and abi.spell(of) != kernel.spell(its):
        complain(f"{where}: {abi.spell(of)}, in the kernel {kernel.spell(its)}")


def check_enums(abi, kernel, complain):
    for number, one in enumerate(abi.types):
        if one.kind not in (ENUM, ENUM64):
            continue
        real = kernel.by_name.get((ENUM, one.name)) or kernel.by_name.get((ENUM64, one.name))
        if real is None:
            complain(f"enum {one.name}: not in the kernel")
            continue
        theirs = kernel.enumerators(real)
        for name, value in abi.enumerators(number).items():
            if theirs.get(name) != value:
                complain(f"{name}: {value:#x}, in the kernel {theirs.get(name)}")


def check_object(abi, kernel, name, parts, complain):
    """Returns the number of different relocations."""
    local = Btf(parts[".BTF"])
    asked = set(relocations(parts.get(".BTF.ext", b"\0" * 32)))
    for root, access, kind in sorted(asked):
        text = local.string(access)
        if kind <= 5:
            path, found = walk(local, root, text, abi)
            if not found and path not in GUARDED and walk(local, root, text, kernel)[1]:
                complain(f"{name}: {path} is not modelled")
        elif kind in (10, 11):
            wanted = list(local.enumerators(local.bare(root)))[int(text)]
            if wanted in kernel.all_enumerators() and wanted not in abi.all_enumerators():
                complain(f"{name}: enumerator {wanted} is missing")
        elif kind != 6:
            wanted = essence(local.types[local.bare(root)].name)
            if abi.composite(wanted) is None and kernel.composite(wanted) is not None:
                complain(f"{name}: type {wanted} is missing")
    for constant in (t.name[2:] for t in local.types if t.kind == VAR and t.name.startswith("__SCX_")):
        if constant in kernel.all_enumerators() and constant not in abi.all_enumerators():
            complain(f"{name}: __{constant} has no enumerator")
    for wanted in externs(local):
        if (FUNC, wanted) in kernel.by_name and (FUNC, wanted) not in abi.by_name:
            complain(f"{name}: {wanted}() is not declared")
    return len(asked)


def externs(local):
    """Kernel functions that an object names; libbpf drops the last `___suffix` of the name."""
    for one in local.types:
        if one.kind == DATASEC and one.name == ".ksyms":
            for of, _, _ in struct.iter_unpack("<III", one.body):
                name = local.types[of].name
                yield name.rpartition("___")[0] or name


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("abi")
    parser.add_argument("vmlinux")
    parser.add_argument("objects", nargs="*")
    given = parser.parse_args()

    def read(path):
        with open(path, "rb") as file:
            return sections(file.read())

    faults = []
    abi, kernel = Btf(read(given.abi)[".BTF"]), Btf(read(given.vmlinux)[".BTF"])
    check_functions(abi, kernel, faults.append)
    check_fields(abi, kernel, faults.append)
    check_enums(abi, kernel, faults.append)
    asked = sum(check_object(abi, kernel, path.rpartition("/")[2], read(path), faults.append)
                for path in given.objects)
    for fault in faults:
        print(fault, file=sys.stderr)
    functions = sum(1 for t in abi.types if t.kind == FUNC)
    print(f"ABI: {functions} kernel functions, {len(abi.types)} types; "
          f"{len(given.objects)} objects, {asked} relocations: {len(faults)} differences")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
