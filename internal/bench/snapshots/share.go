package snapshots

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// errElsewhere says that nothing of a machine's process can be seen.
var errElsewhere = errors.New("no process of it is on this machine: run it beside the host agent, as root")

// share is a machine's part of this host's memory in bytes, each page shared by
// its users: its guest's, and all else of its process.
func share(uid string, ram int64) (guest, rest int64, err error) {
	pid, err := processOf("/proc", uid)
	if err != nil {
		return 0, 0, err
	}
	text, err := os.ReadFile(filepath.Join("/proc", pid, "smaps"))
	if err != nil {
		return 0, 0, fmt.Errorf("memory of %s: %w", uid, err)
	}
	return shares(string(text), ram)
}

// processOf finds the process of QEMU that has a machine's uid in its name.
func processOf(proc, uid string) (string, error) {
	lines, err := filepath.Glob(filepath.Join(proc, "[0-9]*", "cmdline"))
	if err != nil {
		return "", err
	}
	for _, path := range lines {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		argv := strings.Split(string(raw), "\x00")
		for i, arg := range argv[:len(argv)-1] {
			name, _, _ := strings.Cut(argv[i+1], ",") // what follows are options
			if arg == "-name" && strings.HasSuffix(name, "-"+uid) {
				return filepath.Base(filepath.Dir(path)), nil
			}
		}
	}
	return "", errElsewhere
}

// mapping is one of a process.
type mapping struct {
	file     string // its inode and path
	from, to uint64
	pss      int64
}

// shares sums the Pss of mappings; the guest's is the one of ram bytes, or those
// that lie side by side and have that size in all.
func shares(smaps string, ram int64) (guest, rest int64, err error) {
	all, err := mappings(smaps)
	if err != nil {
		return 0, 0, err
	}
	for _, m := range all {
		rest += m.pss
	}
	for first, m := range all {
		guest = 0
		for last := first; last < len(all); last++ {
			if last > first && (all[last].from != all[last-1].to || all[last].file != m.file) {
				break
			}
			guest += all[last].pss
			if all[last].to-m.from == uint64(ram) {
				return guest, rest - guest, nil
			}
		}
	}
	return 0, 0, fmt.Errorf("no mapping of its process has %d MB", ram>>20)
}

func mappings(smaps string) (all []mapping, err error) {
	for line := range strings.Lines(smaps) {
		f := strings.Fields(line)
		if from, to, ok := span(f); ok {
			all = append(all, mapping{file: strings.Join(f[4:], " "), from: from, to: to})
			continue
		}
		if len(f) == 3 && f[0] == "Pss:" && len(all) > 0 {
			kb, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("smaps: %w", err)
			}
			all[len(all)-1].pss = kb << 10
		}
	}
	return all, nil
}

// span reads the first line of a mapping.
func span(f []string) (from, to uint64, ok bool) {
	if len(f) < 5 || len(f[1]) != 4 {
		return 0, 0, false
	}
	low, high, _ := strings.Cut(f[0], "-")
	from, err := strconv.ParseUint(low, 16, 64)
	to, herr := strconv.ParseUint(high, 16, 64)
	return from, to, err == nil && herr == nil && to > from
}

const copied = 256 << 20

// copyRate is how many megabytes of memory a core copies in a second, at best.
func copyRate() float64 {
	from, to := bytes.Repeat([]byte{1}, copied), bytes.Repeat([]byte{2}, copied)
	best := time.Duration(0)
	for range 3 {
		begun := time.Now()
		copy(to, from)
		if took := time.Since(begun); best == 0 || took < best {
			best = took
		}
	}
	return float64(copied) / 1e6 / best.Seconds()
}
