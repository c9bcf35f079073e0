package proc

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestParseStat(t *testing.T) {
	after := " 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20"
	for name, c := range map[string]struct {
		in   string
		want uint64
		gone bool
		bad  bool
	}{
		"plain":       {"12 (qemu) S" + after, 4711, false, false},
		"odd name":    {"12 (a) R 1 (b c) S" + after, 4711, false, false},
		"zombie":      {"12 (qemu) Z" + after, 0, true, true},
		"dead":        {"12 (qemu) X" + after, 0, true, true},
		"short":       {"12 (qemu) S 1 2", 0, false, true},
		"no name":     {"12 qemu S" + after, 0, false, true},
		"empty":       {"", 0, false, true},
		"not a count": {"12 (q) S" + strings.Replace(after, "4711", "x", 1), 0, false, true},
	} {
		got, err := parseStat(c.in)
		if got != c.want || errors.Is(err, ErrGone) != c.gone || (err != nil) != c.bad {
			t.Errorf("%s: %d, %v", name, got, err)
		}
	}
}

func TestParseMaps(t *testing.T) {
	maps := "55f6fa858000-55f6fa859000 r-xp 00000000 fe:00 12 /usr/bin/qemu\n" +
		"7f0000000000-7f0000003000 rw-p 00000000 fe:00 13                  /k/vmlinux\n" +
		"7f0000003000-7f0000004000 r--p 00000000 fe:00 14 /vm/initrd (deleted)\n" +
		"7f0000005000-7f0000006000 rw-p 00000000 00:00 0 \n" +
		"7f0000007000-7f0000006000 rw-p 00000000 fe:00 15 /vm/initrd\n" +
		"7ffe-7fff-8000 junk\nzz-yy r--p 0 fe:00 15 /vm/initrd\n"
	got := parseMaps(maps, func(path string) bool { return path == "/k/vmlinux" || path == "/vm/initrd" })
	if want := []span{{0x7f0000000000, 0x3000}, {0x7f0000003000, 0x1000}}; !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
}

func FuzzParseMaps(f *testing.F) {
	f.Add("7f0000000000-7f0000003000 rw-p 00000000 fe:00 13 /k/vmlinux\n")
	f.Fuzz(func(t *testing.T, in string) {
		for _, s := range parseMaps(in, func(string) bool { return true }) {
			if s.size == 0 || s.base+s.size < s.base {
				t.Errorf("%x", s)
			}
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add("12 (qemu) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20")
	f.Fuzz(func(t *testing.T, in string) {
		if n, err := parseStat(in); err != nil && n != 0 {
			t.Errorf("%d with %v", n, err)
		}
	})
}

// sleeper starts a process with a name that Named finds; this program is its
// parent.
func sleeper(t *testing.T, name string) (*exec.Cmd, Ident) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "sleep 100; :", "sh", "guest="+name+",debug-threads=on")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _, _ = cmd.Process.Wait(); _ = cmd.Process.Release() })
	start, err := StartTime(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := BootID()
	if err != nil {
		t.Fatal(err)
	}
	return cmd, Ident{PID: cmd.Process.Pid, Start: start, BootID: boot}
}

func TestAHandleStaysOnItsProcess(t *testing.T) {
	testkit.Leaks(t)
	_, id := sleeper(t, "proc-test-handle")
	for what, wrong := range map[string]Ident{
		"another boot":  {PID: id.PID, Start: id.Start, BootID: "other"},
		"another start": {PID: id.PID, Start: id.Start + 1, BootID: id.BootID},
		"no such pid":   {PID: 1 << 30, Start: id.Start, BootID: id.BootID},
	} {
		if p, err := Open(wrong, id.BootID); !errors.Is(err, ErrGone) {
			t.Errorf("%s: %v, %v", what, p, err)
		}
	}
	p, err := Open(id, id.BootID)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("waiting for a process that runs: %v", err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	// A deadline that has passed must not spoil the next wait.
	again, err := Open(id, id.BootID)
	if err == nil {
		defer again.Close()
		err = again.Wait(t.Context())
	}
	if err != nil && !errors.Is(err, ErrGone) {
		t.Fatal(err)
	}
	testkit.Eventually(t, time.Minute, "it is a zombie", func() bool {
		_, err := StartTime(id.PID)
		return errors.Is(err, ErrGone)
	})
	if how, ok := p.Reap(); !ok || how != "killed by signal 9 (killed)" {
		t.Errorf("it ended %q, %v", how, ok)
	}
	if how, ok := p.Reap(); ok {
		t.Errorf("a second reap says %q", how)
	}
	if err := p.Kill(); err != nil {
		t.Errorf("killing it again: %v", err)
	}
	if _, err := Open(id, id.BootID); !errors.Is(err, ErrGone) {
		t.Errorf("opening it again: %v", err)
	}
}

func TestEndAndClose(t *testing.T) {
	testkit.Leaks(t)
	_, id := sleeper(t, "proc-test-end")
	p, err := Open(id, id.BootID)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	_, id = sleeper(t, "proc-test-close")
	if p, err = Open(id, id.BootID); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- p.Wait(t.Context()) }()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if err := <-waited; err == nil {
		t.Error("closing a handle looked like the end of its process")
	}
}

func TestNamed(t *testing.T) {
	prefix := "proc-test-named-"
	a, _ := sleeper(t, prefix+"a")
	b, _ := sleeper(t, prefix+"b")
	found, err := Named(prefix)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for pid, name := range found {
		if pid == a.Process.Pid || pid == b.Process.Pid {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("found %v", found)
	}
	if found, err := Named(prefix + "c"); err != nil || len(found) != 0 {
		t.Errorf("found %v, %v", found, err)
	}
	if _, ok := found[os.Getpid()]; ok {
		t.Error("found this process")
	}
}
