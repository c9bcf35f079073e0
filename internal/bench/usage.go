package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Usage is what one process has taken of the machine so far.
type Usage struct {
	Process string
	RSS     int64 // bytes resident now
	Peak    int64 // most bytes resident at a time; 0: not known
	CPU     time.Duration
}

// clockTick is the unit of CPU times in /proc, the same on every Linux
// architecture that Go runs on.
const clockTick = 10 * time.Millisecond

// ProcessUsage reads /proc for a process of this machine.
func ProcessUsage(name string, pid int) (Usage, error) {
	u := Usage{Process: name}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return u, fmt.Errorf("usage of %s: %w", name, err)
	}
	u.RSS, u.Peak = statusBytes(status, "VmRSS:"), statusBytes(status, "VmHWM:")
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return u, fmt.Errorf("usage of %s: %w", name, err)
	}
	u.CPU, err = statCPU(stat)
	return u, err
}

// statusBytes reads a line such as "VmRSS:   1024 kB"; 0 if there is none.
func statusBytes(status []byte, field string) int64 {
	for line := range bytes.Lines(status) {
		rest, ok := bytes.CutPrefix(line, []byte(field))
		if !ok {
			continue
		}
		kb, err := strconv.ParseInt(string(bytes.TrimSpace(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte("kB")))), 10, 64)
		if err != nil {
			return 0
		}
		return kb << 10
	}
	return 0
}

// statCPU adds user and system time, fields 14 and 15 of /proc/PID/stat. The
// second field is the program's name in brackets and may hold anything.
func statCPU(stat []byte) (time.Duration, error) {
	_, rest, ok := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	fields := strings.Fields(rest)
	if !ok || len(fields) < 13 {
		return 0, errors.New("/proc/PID/stat is too short")
	}
	var total time.Duration
	for _, f := range fields[11:13] {
		ticks, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/PID/stat: %w", err)
		}
		total += time.Duration(ticks) * clockTick
	}
	return total, nil
}

// MetricsUsage asks a server for its own process_* metrics, wherever it runs.
func (t Target) MetricsUsage(ctx context.Context) ([]Usage, error) {
	raw, err := t.Call(ctx, http.MethodGet, "/metrics", nil)
	if err != nil {
		return nil, err
	}
	rss, cpu := metric(raw, "process_resident_memory_bytes"), metric(raw, "process_cpu_seconds_total")
	return []Usage{{Process: "server", RSS: int64(rss), CPU: time.Duration(cpu * float64(time.Second))}}, nil
}

// metric reads an unlabelled sample of the text format; 0 if there is none.
func metric(exposition []byte, name string) float64 {
	for lines := bufio.NewScanner(bytes.NewReader(exposition)); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return 0
			}
			return v
		}
	}
	return 0
}

// describe prints the memory of each process.
func describe(usages []Usage) string {
	parts := make([]string, 0, len(usages))
	for _, u := range usages {
		text := fmt.Sprintf("%s %d MB", u.Process, u.RSS>>20)
		if u.Peak > 0 {
			text += fmt.Sprintf(" (peak %d MB)", u.Peak>>20)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// spent prints the CPU time that each process took for one of n operations.
func spent(before, after []Usage, n int) string {
	text := ""
	for i, a := range after {
		if i < len(before) {
			text += "  " + a.Process + " " + ms((a.CPU-before[i].CPU)/time.Duration(max(n, 1)))
		}
	}
	return text
}
