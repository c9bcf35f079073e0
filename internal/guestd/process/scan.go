package process

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

// markerVar names the environment variable that marks a command's processes
// where there is no cgroup to hold them.
const markerVar = "FUSE_EXEC"

// killScan ends every process that descends from pid, is in its session or
// process group, or carries marker in its environment. It repeats until none
// is left, because one may fork while another is being killed, and gives up at
// the deadline.
func killScan(pid int, marker string, deadline time.Time) {
	for {
		found := findTree(pid, marker)
		if len(found) == 0 {
			return
		}
		for _, p := range found {
			_ = syscall.Kill(p, syscall.SIGKILL) // it may have ended meanwhile
		}
		if time.Now().After(deadline) {
			return
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// procStat is the part of /proc/PID/stat that places a process.
type procStat struct {
	state                rune
	parent, group, sessn int
}

func findTree(pid int, marker string) []int {
	stats := map[int]procStat{}
	for _, p := range listProcs() {
		if s, ok := readStat(p); ok && s.state != 'Z' && s.state != 'X' {
			stats[p] = s
		}
	}
	var found []int
	for p, s := range stats {
		if p == pid || s.group == pid || s.sessn == pid || descends(stats, p, pid) || marked(p, marker) {
			found = append(found, p)
		}
	}
	return found
}

func descends(stats map[int]procStat, p, ancestor int) bool {
	for range len(stats) {
		s, ok := stats[p]
		if !ok {
			return false
		}
		if s.parent == ancestor {
			return true
		}
		p = s.parent
	}
	return false
}

func marked(pid int, marker string) bool {
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return false
	}
	want := []byte(markerVar + "=" + marker)
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if bytes.Equal(kv, want) {
			return true
		}
	}
	return false
}

func listProcs() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1) // what was read is what there is
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// readStat reads a process's place. The name in the second field may hold
// anything, so fields count from the last parenthesis.
func readStat(pid int) (procStat, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return procStat{}, false
	}
	return parseStat(data)
}

func parseStat(data []byte) (procStat, bool) {
	end := bytes.LastIndexByte(data, ')')
	if end < 0 {
		return procStat{}, false
	}
	f := bytes.Fields(data[end+1:])
	if len(f) < 4 || len(f[0]) != 1 {
		return procStat{}, false
	}
	parent, err1 := strconv.Atoi(string(f[1]))
	group, err2 := strconv.Atoi(string(f[2]))
	sessn, err3 := strconv.Atoi(string(f[3]))
	ok := err1 == nil && err2 == nil && err3 == nil
	return procStat{state: rune(f[0][0]), parent: parent, group: group, sessn: sessn}, ok
}
