// SPDX-License-Identifier: GPL-2.0-only
//! The workloads of the closed loop: a name, the machine, and the program's text.

/// A workload and its machine.
pub struct Case {
    pub name: &'static str,
    pub machine: &'static str,
    pub text: &'static str,
}

impl Case {
    /// Returns the parameters behind the name of the recording. The host's recording does not know
    /// what the guests' threads finish, so the work of the virtual CPUs stands for it.
    pub fn parameters(&self) -> &'static str {
        if self.name == "guests" { "steps=vm*" } else { "" }
    }
}

pub const CASES: [Case; 12] = [
    Case {
        name: "request-response",
        machine: "1n2c1t",
        text: r#"
            [[thread]]
            name = "client"
            instances = 4
            ops = [{ loop = { ops = [{ compute = "60us" }, { write = { pipe = "to{i}", bytes = 200 } },
                { read = { pipe = "from{i}", bytes = 2000 } }, { count = 1 }, { sleep = "300us" }] } }]
            [[thread]]
            name = "server"
            process = "server"
            instances = 4
            ops = [{ loop = { ops = [{ read = { pipe = "to{i}", bytes = 200 } }, { compute = "50us" },
                { write = { pipe = "from{i}", bytes = 2000 } }] } }]
            [[thread]]
            name = "batch"
            nice = 5
            ops = [{ loop = { ops = [{ compute = "2ms" }] } }]"#,
    },
    Case {
        name: "pipeline",
        machine: "1n2c2t",
        text: r#"
            [[pipe]]
            name = "a{i}"
            capacity = 16384
            [[pipe]]
            name = "b{i}"
            capacity = 16384
            [[thread]]
            name = "source"
            instances = 3
            ops = [{ loop = { ops = [{ compute = "40us" }, { write = { pipe = "a{i}", bytes = 1024 } }] } }]
            [[thread]]
            name = "stage"
            instances = 3
            ops = [{ loop = { ops = [{ read = { pipe = "a{i}", bytes = 1024 } }, { compute = "110us" },
                { write = { pipe = "b{i}", bytes = 512 } }] } }]
            [[thread]]
            name = "sink"
            instances = 3
            ops = [{ loop = { ops = [{ read = { pipe = "b{i}", bytes = 512 } }, { compute = "30us" }, { count = 1 }] } }]"#,
    },
    Case {
        name: "frames",
        machine: "1n2c1t",
        text: r#"
            [[thread]]
            name = "render"
            instances = 2
            ops = [{ loop = { ops = [{ timer = { name = "f", period = "4ms", mode = "absolute", unique = true } },
                { compute = "900us" }, { sem_post = "show{i}" }, { count = 1 }] } }]
            [[thread]]
            name = "compositor"
            instances = 2
            ops = [{ loop = { ops = [{ sem_wait = "show{i}" }, { compute = "350us" }, { count = 1 }] } }]
            [[thread]]
            name = "encoder"
            instances = 3
            ops = [{ loop = { ops = [{ compute = "1500us" }, { count = 1 }] } }]"#,
    },
    Case {
        name: "barrier",
        machine: "1n4c1t",
        text: r#"
            [[thread]]
            name = "rank"
            instances = 4
            process = "mpi"
            ops = [{ loop = { ops = [{ compute = "700us" }, { barrier = "b" }, { count = 1 }, { compute = "200us" }, { barrier = "b" }] } }]
            [[thread]]
            name = "noise"
            instances = 2
            ops = [{ loop = { ops = [{ compute = "1ms" }, { sleep = "3ms" }] } }]"#,
    },
    Case {
        name: "build",
        machine: "1n2c1t",
        text: r#"
            [[semaphore]]
            name = "slots"
            value = 3
            [[thread]]
            name = "make"
            ops = [{ compute = "2ms" }, { loop = { ops = [{ sem_wait = "slots" }, { fork = "cc" }, { compute = "100us" }] } }]
            [[thread]]
            name = "cc"
            instances = 0
            ops = ["exec", { io = { bytes = 65536 } }, { compute = "4ms" }, { fork = "as" }, "join", { count = 1 }, { sem_post = "slots" }]
            [[thread]]
            name = "as"
            instances = 0
            ops = ["exec", { compute = "1ms" }]
            [[thread]]
            name = "editor"
            ops = [{ loop = { ops = [{ sleep = "5ms" }, { compute = "200us" }] } }]"#,
    },
    Case {
        name: "database",
        machine: "1n2c1t",
        text: r#"
            [[thread]]
            name = "session"
            instances = 6
            process = "db"
            ops = [{ loop = { ops = [{ compute = "120us" }, { lock = "log" }, { compute = "60us" }, { unlock = "log" },
                { compute = "80us" }, { io = { bytes = 4096 } }, { count = 1 }] } }]
            [[thread]]
            name = "checkpoint"
            process = "db"
            ops = [{ loop = { ops = [{ sleep = "10ms" }, { lock = "log" }, { compute = "500us" }, { unlock = "log" }] } }]"#,
    },
    Case {
        name: "nice",
        machine: "1n2c1t",
        text: r#"
            [[thread]]
            name = "low"
            instances = 2
            nice = 10
            ops = [{ loop = { ops = [{ compute = "1ms" }, { count = 1 }] } }]
            [[thread]]
            name = "mid"
            instances = 2
            ops = [{ loop = { ops = [{ compute = "700us" }, { sleep = "200us" }, { count = 1 }] } }]
            [[thread]]
            name = "high"
            instances = 2
            nice = -10
            ops = [{ loop = { ops = [{ compute = "300us" }, { sleep = "1ms" }, { count = 1 }] } }]"#,
    },
    Case {
        name: "caps",
        machine: "1n2c1t",
        text: r#"
            [[cgroup]]
            path = "/a"
            weight = 300
            [[cgroup]]
            path = "/b"
            quota = "10ms"
            period = "20ms"
            [[thread]]
            name = "web"
            instances = 3
            cgroup = "/a"
            ops = [{ loop = { ops = [{ compute = "800us" }, { count = 1 }, { sleep = "500us" }] } }]
            [[thread]]
            name = "job"
            instances = 3
            cgroup = "/b"
            ops = [{ loop = { ops = [{ compute = "1ms" }, { count = 1 }] } }]"#,
    },
    Case {
        name: "guests",
        machine: "1n2c1t",
        text: r#"
            [[guest]]
            name = "vm{i}"
            instances = 2
            vcpus = 2
            [[guest.program.thread]]
            name = "inner"
            instances = 3
            ops = [{ loop = { ops = [{ compute = "400us" }, { sleep = "600us" }, { count = 1 }] } }]
            [[thread]]
            name = "host"
            ops = [{ loop = { ops = [{ compute = "500us" }, { sleep = "500us" }] } }]"#,
    },
    Case {
        name: "messaging",
        machine: "1n4c1t",
        text: r#"
            [[pipe]]
            name = "q{i}"
            kind = "socket"
            [[thread]]
            name = "sender"
            instances = 4
            ops = [{ loop = { ops = [{ compute = "5us" }, { write = { pipe = "q0", bytes = 100 } }, { compute = "5us" }, { write = { pipe = "q1", bytes = 100 } },
                { compute = "5us" }, { write = { pipe = "q2", bytes = 100 } }, { compute = "5us" }, { write = { pipe = "q3", bytes = 100 } }] } }]
            [[thread]]
            name = "receiver"
            instances = 4
            ops = [{ loop = { ops = [{ read = { pipe = "q{i}", bytes = 100 } }, { compute = "12us" }, { count = 1 }] } }]"#,
    },
    Case {
        name: "sleepers-hogs",
        machine: "1n2c2t",
        text: r#"
            [[thread]]
            name = "hog"
            instances = 4
            ops = [{ loop = { ops = [{ compute = "3ms" }, { count = 1 }] } }]
            [[thread]]
            name = "sleeper"
            instances = 6
            ops = [{ loop = { ops = [{ sleep = "900us" }, { compute = "100us" }, { count = 1 }] } }]"#,
    },
    Case {
        name: "schbench",
        machine: "1n4c1t",
        text: r#"
            [[thread]]
            name = "message"
            process = "schbench"
            ops = [{ loop = { ops = [{ sem_wait = "free" }, { sem_post = "go" }] } }]
            [[thread]]
            name = "worker"
            instances = 7
            process = "schbench"
            ops = [{ loop = { ops = [{ sem_post = "free" }, { sem_wait = "go" }, { sleep = "100us" }, { compute = "700us" }, { count = 1 }] } }]"#,
    },
];
