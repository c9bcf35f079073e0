package rig

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
	"github.com/fusevm/fuse/test/inventory"
)

// victimEnv makes this test binary build a lab and wait to be killed.
const victimEnv = "FUSE_LAB_VICTIM"

func victim() {
	imageDir = os.Getenv(victimEnv) // images of the test that looks on
	l := New(&Alone{}, Options{Hosts: 1, Servers: 2, Postgres: true})
	l.CLI("create", "--task-id", "left", "--ram-mb", "128", "--cpus", "1")
	fmt.Println("lab", l.run.id)
	select {}
}

// What a lab ran ends with its process, however that ends, and the next lab
// sweeps the rest: namespaces, links, control groups, files.
func TestKilled(t *testing.T) {
	if _, err := images(); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	all := func() []string {
		list, err := inventory.View{}.List()
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), victimEnv+"="+imageDir, BinaryEnv+"="+program.fuse)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	id, ok := strings.CutPrefix(strings.TrimSpace(line), "lab ")
	if err != nil || !ok {
		t.Fatalf("the victim says %q, %v", line, err)
	}
	r := &run{id: id, dir: filepath.Join(runs, id)}
	marks, err := r.marks()
	if err != nil {
		t.Fatal(err)
	}
	of := func() (left []string) {
		for _, o := range all() {
			for _, m := range marks {
				if strings.Contains(o, m) {
					left = append(left, o)
					break
				}
			}
		}
		return left
	}
	for _, kind := range []string{"netns ", "link ", "process ", "cgroup ", "mount "} {
		if !strings.Contains(strings.Join(of(), "\n"), kind) {
			t.Errorf("the lab has no %s, so its end shows nothing: %v", kind, of())
		}
	}
	if err := Sweep(); err != nil || len(of()) == 0 {
		t.Fatalf("a sweep touches a lab that lives: %v %v", err, of())
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	testkit.Eventually(t, 2*time.Minute, "every process of the lab has ended", func() bool { return len(naming(t, r.dir)) == 0 })
	if err := Sweep(); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 2*time.Minute, "nothing of the lab is left", func() bool { return len(of()) == 0 })
	if _, err := os.Stat(r.dir); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
}

// naming are the processes with a text in their command lines.
func naming(t *testing.T, text string) (found []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range lines {
		if raw, err := os.ReadFile(path); err == nil && strings.Contains(string(raw), text) {
			found = append(found, path)
		}
	}
	return found
}
