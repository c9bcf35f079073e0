package vmm

import (
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/hostd/driver"
)

func TestCommandLineNamesNoFileOfOurs(t *testing.T) {
	specs := map[string]Spec{
		"boots":    {Root: 3, Layers: []Layer{{Number: 0, FD: 4, ReadOnly: 5}}},
		"layers":   {Root: 3, Layers: []Layer{{Number: 0, FD: 4}, {Number: 7, FD: 5, ReadOnly: 6}}},
		"template": {NullSize: 1 << 30, Memory: 10, Shared: true, Incoming: true},
		"fork":     {Root: 3, Layers: []Layer{{Number: 0, FD: 4}, {Number: 1, FD: 5, ReadOnly: 6}}, Memory: 10, Incoming: true},
	}
	for arch, m := range machines {
		for _, accel := range []string{KVM, TCG} {
			for name, s := range specs {
				s.Accel, s.Name, s.VM, s.Netdev = accel, "fuse-reg-uid", driver.VM{CPUs: 3, RamMB: 777, Dir: "/data/vms/x"}, "tap,id=n0,fd=9"
				args := m.Args(s)
				line := strings.Join(args, " ")
				for _, want := range []string{"-smp 3", "-m 777", "size=777M", "guest=fuse-reg-uid,", "-netdev tap,id=n0,fd=9", "console=" + m.Console, "spawn=deny", "-accel " + accel, "drive=" + s.top() + ","} {
					if !strings.Contains(line, want) {
						t.Errorf("%s %s %s: no %q in %s", arch, accel, name, want, line)
					}
				}
				if strings.Contains(line, "/data") {
					t.Errorf("%s: a path of ours in %s", arch, line)
				}
				if strings.Contains(line, "-incoming defer") != s.Incoming {
					t.Errorf("%s: %s", name, line)
				}
				for _, a := range args {
					for _, part := range strings.FieldsFunc(a, func(r rune) bool { return r == '=' || r == ',' }) {
						if strings.HasPrefix(part, "/") && !strings.HasPrefix(part, "/dev/fdset/") && !strings.HasPrefix(part, "/proc/self/fd/") && !strings.HasPrefix(part, "/usr/share/") {
							t.Errorf("%s: opens %s", arch, part)
						}
					}
				}
			}
		}
	}
}

func TestALayerLiesOnTheOneBelow(t *testing.T) {
	line := strings.Join(Spec{Root: 3, Layers: []Layer{{Number: 0, FD: 4}, {Number: 7, FD: 5, ReadOnly: 6}}}.disks(), " ")
	for _, want := range []string{
		"node-name=disk,file=disk-file,backing=root,read-only=on", "node-name=disk-7,file=disk-7-file,backing=disk,discard=unmap",
		"fd=5,set=107", "fd=6,set=107", "filename=/dev/fdset/100,read-only=on",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("no %q in %s", want, line)
		}
	}
}

// A kernel's panic is told, and the machine goes on by itself.
func TestAPanicIsTold(t *testing.T) {
	for arch, m := range machines {
		line := strings.Join(m.Args(Spec{Root: 3, Layers: []Layer{{Number: 0, FD: 4}}, Extra: []string{"-device", "extra"}}), " ")
		if !strings.Contains(line, "-action panic=none") {
			t.Errorf("%s: a panic stops the machine: %s", arch, line)
		}
		if m.Panic != "" && !strings.Contains(line, "-device "+m.Panic+" -device extra") {
			t.Errorf("%s: %s", arch, line)
		}
	}
	if machines["amd64"].Panic == "" {
		t.Error("a guest of amd64 cannot say that it panicked")
	}
}
