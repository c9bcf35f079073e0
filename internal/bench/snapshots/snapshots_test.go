package snapshots

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestAProcessIsFoundByItsMachine(t *testing.T) {
	proc := t.TempDir()
	for pid, argv := range map[string][]string{
		"7":  {"cat", "-name", "guest=fuse-R-OTHER"},
		"12": {"qemu", "-name", "guest=fuse-R-UID,debug-threads=on", "-nodefaults"},
		"13": {"qemu", "-name", "guest=fuse-R-capture.UID2"},
		"14": {"vi", "guest=fuse-R-UID"},
	} {
		if err := os.Mkdir(filepath.Join(proc, pid), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(proc, pid, "cmdline"), []byte(strings.Join(argv, "\x00")+"\x00"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if pid, err := processOf(proc, "UID"); err != nil || pid != "12" {
		t.Errorf("%q, %v", pid, err)
	}
	if pid, err := processOf(proc, "UID2"); err == nil {
		t.Errorf("the template of a capture, %q, is taken for the machine", pid)
	}
}

func TestMemoryIsTheGuestsOrTheProcesss(t *testing.T) {
	const smaps = `
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Pss:                 100 kB
Pss_Anon:             50 kB
7f0000400000-7f0001000000 rw-s 00000000 00:01 77 /memfd:ram (deleted)
Pss:                3000 kB
7f0001000000-7f0001400000 rw-s 00c00000 00:01 77 /memfd:ram (deleted)
Pss:                1000 kB
7f0001400000-7f0001800000 r-xp 00000000 08:01 9 /usr/bin/qemu
Pss:                   7 kB
`
	guest, rest, err := shares(smaps, 16<<20)
	if err != nil || guest != 4000<<10 || rest != 107<<10 {
		t.Errorf("guest %d, rest %d, %v", guest>>10, rest>>10, err)
	}
	// Of an anonymous one, the neighbours may be anonymous too.
	if guest, rest, err := shares("7f0-8f0 rw-p 0 00:00 0\nPss: 1 kB\n8f0-10f0 rw-p 0 00:00 0\nPss: 2 kB\n10f0-20f0 rw-p 0 00:00 0\nPss: 4 kB\n", 0x800); err != nil || guest != 2<<10 || rest != 5<<10 {
		t.Errorf("guest %d, rest %d, %v", guest, rest, err)
	}
	if _, _, err := shares(smaps, 8<<20); err == nil {
		t.Error("memory that is not there was found")
	}
}

func TestRatiosAreOfOneMachineEach(t *testing.T) {
	s := &size{copyRate: 1000}
	for _, each := range []times{
		{name: nameCold, took: []time.Duration{5 * time.Second, 3 * time.Second, 4 * time.Second}, bytes: 50e6},
		{name: nameGolden, took: []time.Duration{time.Second}},
		{name: "nothing"},
	} {
		s.add(each)
	}
	s.report.Memory = []Memory{{nameForks, 16, 160, 1600}, {nameBoots, 8, 800, 800}}
	s.ratios()
	want := []float64{0.25, 0.1, 0.55}
	got := []float64{}
	for _, r := range s.report.Ratios {
		got = append(got, r.Value)
	}
	if !slices.Equal(got, want) {
		t.Errorf("ratios %v, want %v", got, want)
	}
	if cold := s.time(nameCold); len(s.report.Times) != 2 || cold.P50 != 4000 || cold.Max != 5000 || cold.BoundMs != 50 {
		t.Errorf("%+v", s.report.Times)
	}
	s.note("a container: %s", "no daemon")
	var out strings.Builder
	if err := (Report{Sizes: []SizeReport{s.report}}).Print(&out); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"cold create", "4000.0", "10 and 100", "not measured: a container: no daemon"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("%q is not in\n%s", line, out.String())
		}
	}
}
