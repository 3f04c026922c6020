// SPDX-License-Identifier: GPL-2.0-only
//! Test of `scxlab attach --install` with the real systemd, which runs in a PID namespace of a
//! guest whose /init is the scxlab command.

use std::io::Write;
use std::path::Path;

use crate::bench::Bench;

const SYSTEMD: &str = "/lib/systemd/systemd";

/// Boots systemd twice, by killing it in between. The service `steps` is what the administrator
/// does. Prints the result of each step on the console.
const SCRIPT: &str = r#"
exec >/dev/console 2>&1
mount -t tmpfs tmpfs /run
mkdir -p /etc/systemd/system/multi-user.target.wants /var/lib
echo 0123456789abcdef0123456789abcdef >/etc/machine-id
cat >/common <<"END"
sched_ext=/sys/kernel/sched_ext
say_state() { read state <$sched_ext/state; echo "$1: $state"; }
say_loaded() { read name <$sched_ext/root/ops; echo "$1: $name"; }
say_service() { echo "$1: $(systemctl $2 scxlab.service)"; }
wait_for() { while read state <$sched_ext/state && [ "$state" != "$1" ]; do sleep 0.1; done; }
END
cat >/steps <<"END"
exec >/dev/console 2>&1
. /common
if [ ! -e /done1 ]; then
    /init attach nothing --install; echo "install what does not exist: $?"
    /init attach vtime --install; echo "install: $?"
    say_state "at once"
    /init attach eevdf --install; echo "install the default class: $?"
    /init attach prio_array --install; echo "install another: $?"
    say_loaded "instead"
    say_service "at boot" is-enabled
    echo >/done1
    exit
fi
wait_for enabled
say_loaded "after the boot"
echo S >/proc/sysrq-trigger
wait_for disabled
while systemctl is-active -q scxlab.service; do sleep 0.1; done
say_service "after the ejection" is-failed
sleep 2
say_state "a while later"
/init attach vtime --install; echo "install again: $?"
say_loaded "again"
/init attach --uninstall; echo "uninstall: $?"
say_state "at last"
ls /etc/systemd/system/multi-user.target.wants /var/lib/scxlab
/init attach --uninstall; echo "uninstall nothing: $?"
echo >/done2
END
units=/etc/systemd/system
for target in sysinit basic multi-user shutdown; do
    printf "[Unit]\nDefaultDependencies=no\n" >$units/$target.target
done
printf "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=/bin/sh /steps\n" >$units/steps.service
ln -s ../steps.service $units/multi-user.target.wants/steps.service
. /common
for boot in 1 2; do
    unshare --fork --kill-child --pid --mount-proc env container=scxlab \
        /lib/systemd/systemd --unit=multi-user.target --show-status=no --log-target=console --log-level=err & booted=$!
    while [ ! -e /done$boot ]; do sleep 0.1; done
    kill -9 $booted; wait $booted
    wait_for disabled
    echo "boot $boot has ended"
done
"#;

#[test]
fn an_installed_scheduler_stays_until_it_is_ejected() {
    let Some(bench) = Bench::new() else { return };
    if !Path::new(SYSTEMD).exists() {
        let _ = writeln!(std::io::stderr(), "vm: skipped: there is no {SYSTEMD}");
        return;
    }
    let programs =
        [SYSTEMD, "systemctl", "unshare", "env", "mount", "mkdir", "ln", "ls", "cat", "sleep"];
    // Long enough for the slowest hosts: the script ends by itself.
    let args = ["-s", "eevdf", "-m", "1n2c1t", "--duration", "10min"];
    let done = bench.script(&args, SCRIPT, &programs);
    for line in [
        "install what does not exist: 2",
        "vtime is attached now and at each boot",
        "install: 0",
        "at once: enabled",
        "install the default class: 2",
        "install another: 0",
        "instead: prio_array",
        "at boot: enabled",
        "boot 1 has ended",
        "after the boot: prio_array",
        "after the ejection: failed",
        "a while later: disabled",
        "install again: 0",
        "again: vtime",
        "the service is stopped and removed",
        "uninstall: 0",
        "at last: disabled",
        "no service is installed",
        "uninstall nothing: 0",
        "boot 2 has ended",
    ] {
        done.says(line);
    }
    // The unit's link and the copies are gone.
    let listed = done.console.split("at last: disabled").nth(1).unwrap_or_default();
    assert!(!listed.contains("scxlab.service") && !listed.contains("attach"), "{done}");
}
