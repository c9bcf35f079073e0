package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/ocitest"
	"github.com/fusevm/fuse/internal/testkit"
)

// serviceProgram is a service that knows who has to be there when it starts,
// and who must have gone when it ends: its exit code says whether they were.
const serviceProgram = `package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func up(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func list(name string) []string { return strings.Fields(os.Getenv(name)) }

func main() {
	if len(os.Args) == 3 && os.Args[1] == "probe" {
		for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if up("127.0.0.1:" + os.Args[2]) {
				return
			}
		}
		os.Exit(1)
	}
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM)
	host, _ := os.Hostname()
	fmt.Println("pid", os.Getpid(), "host", host, "secret", os.Getenv("SECRET"))
	for _, need := range list("NEEDS") {
		if !up(need) {
			fmt.Println(need, "is not there")
			os.Exit(9)
		}
	}
	if os.Getenv("FAIL_FIRST") != "" {
		if _, err := os.Stat("/failed"); err != nil {
			os.WriteFile("/failed", nil, 0o600)
			os.Exit(3)
		}
	}
	time.Sleep(time.Second)
	l, err := net.Listen("tcp", ":"+os.Getenv("PORT"))
	if err != nil {
		fmt.Println(err)
		os.Exit(4)
	}
	go func() {
		for {
			if c, err := l.Accept(); err == nil {
				c.Close()
			}
		}
	}()
	fmt.Println("serves")
	<-told
	for _, user := range list("USERS") {
		if up(user) {
			fmt.Println(user, "is still there")
			os.Exit(7)
		}
	}
	for _, need := range list("NEEDS") {
		if !up(need) {
			fmt.Println(need, "has gone before")
			os.Exit(8)
		}
	}
}
`

// serviceImage is an image with that program alone.
func serviceImage(t *testing.T, program []byte, name string) v1.Image {
	t.Helper()
	return ocitest.Image(t, fleet.NormalizeArch(runtime.GOARCH), v1.Config{Entrypoint: []string{"/service"}, Env: []string{"FROM=" + name}},
		ocitest.Layer(t, ocitest.Program("service", program)))
}

func buildService(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(serviceProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "service")
	cmd := exec.Command("go", "build", "-ldflags", "-s -w", "-o", out, filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	program, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// takesAndMayTake reads what a machine takes, and changes its limits and secrets
// while it runs.
func takesAndMayTake(t *testing.T, d *daemon, id string) {
	t.Helper()
	var u struct {
		CPUSeconds     float64 `json:"cpu_seconds"`
		MemoryBytes    int64   `json:"memory_bytes"`
		DiskReadBytes  int64   `json:"disk_read_bytes"`
		DiskWriteBytes int64   `json:"disk_write_bytes"`
	}
	text := d.must("top", id, "--json")
	if err := json.Unmarshal([]byte(text), &u); err != nil || u.CPUSeconds <= 0 || u.MemoryBytes < 100<<20 || u.DiskReadBytes < 1<<20 {
		t.Errorf("it takes %s (%v)", text, err)
	}
	if got := d.must("top"); !strings.Contains(got, id) || !strings.Contains(got, "MiB") {
		t.Errorf("the table is %q", got)
	}
	// The guest reads past its cache, so that every byte is the disk's.
	read := func() time.Duration {
		began := time.Now()
		d.must("exec", id, "--", "sh", "-c", "sync; echo 3 >/proc/sys/vm/drop_caches; dd if=/big of=/dev/null bs=64k")
		return time.Since(began)
	}
	d.must("exec", id, "--", "sh", "-c", "dd if=/dev/zero of=/big bs=64k count=96")
	d.must("update", id, "--limit", "disk-read=2M", "--limit", "cpu=1.5", "--limit", "net-in=1M")
	if took := read(); took < 2*time.Second {
		t.Errorf("6 MiB at 2 MiB a second took %s", took)
	}
	if text := d.must("get", id, "--json"); !strings.Contains(text, `"disk_read_bps":2097152`) || !strings.Contains(text, `"cpu_millis":1500`) {
		t.Errorf("the limits are not recorded: %s", text)
	}
	d.must("update", id, "--limit", "none", "--secret", "key=other")
	if got := d.must("exec", id, "--", "cat", "/fuse/secrets.json"); got != `{"key":"other"}` {
		t.Errorf("the guest's secrets are %q", got)
	}
}

type serviceRow struct {
	Name     string `json:"name"`
	State    string `json:"state"`
	Health   string `json:"health"`
	Restarts int    `json:"restarts"`
	ExitCode *int   `json:"exit_code"`
	Message  string `json:"message"`
}

func (d *daemon) services(t *testing.T, id string) map[string]serviceRow {
	t.Helper()
	var list struct{ Services []serviceRow }
	text := d.must("service", "ls", id, "--json")
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	out := map[string]serviceRow{}
	for _, s := range list.Services {
		out[s.Name] = s
	}
	return out
}

// TestServicesOfImages runs three services, each in an image of its own: each
// finds what it depends on when it starts, starts again as declared with what it
// has written, and ends before what it depends on.
func TestServicesOfImages(t *testing.T) {
	t.Parallel()
	r := ocitest.New(t)
	program := buildService(t)
	db, web := r.Push(t, "team/db:v1", serviceImage(t, program, "db")), r.Push(t, "team/web:v1", serviceImage(t, program, "web"))
	probe := func(port int) string {
		return fmt.Sprintf(`"healthcheck":{"test":["CMD","/service","probe","%d"],"interval":"30s","timeout":"30s","retries":12}`, port)
	}
	manifest := fmt.Sprintf(`{"version":"1","services":{
		"db":{"image":%q,"env":{"PORT":{"value":"7001"},"USERS":{"value":"app:7002 web:7003"},"SECRET":{"secret":"key"}},%s},
		"app":{"image":%q,"command":["/service"],"restart":"on-failure","max_restarts":3,"depends_on":{"db":{"condition":"healthy"}},
			"env":{"PORT":{"value":"7002"},"NEEDS":{"value":"db:7001"},"USERS":{"value":"web:7003"},"FAIL_FIRST":{"value":"1"}},%s},
		"web":{"image":%q,"depends_on":{"app":{"condition":"healthy"}},"env":{"PORT":{"value":"7003"},"NEEDS":{"value":"db:7001 app:7002"}}}}}`,
		db, probe(7001), db, probe(7002), web)

	d := dev(t, bins.fuse, machineDir(t), nil)
	d.must("create", "--task-id", "shop", "--ram-mb", "384", "--manifest", manifest, "--secret", "key=hidden")
	var last map[string]serviceRow
	testkit.Eventually(t, 4*time.Minute, "all three serve", func() bool {
		last = d.services(t, "fuse-shop")
		return last["web"].State == "running" && strings.Contains(d.fuse("service", "logs", "fuse-shop", "web").out, "serves")
	})
	if last["db"].Health != "passing" || last["app"].Health != "passing" || last["app"].Restarts < 1 || // more on a busy machine, where a probe comes late
		last["db"].Restarts != 0 || last["web"].Restarts != 0 {
		t.Errorf("they are %+v", last)
	}
	if log := d.must("service", "logs", "fuse-shop", "db"); !strings.Contains(log, "host db secret hidden") || strings.Contains(log, "pid 1 ") {
		t.Errorf("db said %q", log)
	}
	text := d.must("get", "fuse-shop", "--json")
	if !strings.Contains(text, db+"@sha256:") || !strings.Contains(text, web+"@sha256:") {
		t.Errorf("what the images stood for is not recorded: %s", text)
	}
	if got := d.must("exec", "fuse-shop", "--", "sh", "-c", "ls /service 2>&1 || true; nc 127.0.0.1 7003 </dev/null && echo reached"); !strings.Contains(got, "No such file") || !strings.Contains(got, "reached") {
		t.Errorf("the environment sees %q", got)
	}
	if out := d.fuse("image", "rm", web, "--all-hosts"); out.code == 0 || !strings.Contains(out.out, "in use") {
		t.Errorf("remove one in use: exit %d: %s%s", out.code, out.out, out.err)
	}
	takesAndMayTake(t, d, "fuse-shop")
	d.must("drain", "fuse-shop")
	for name, s := range d.services(t, "fuse-shop") {
		if s.State != "stopped" || s.ExitCode == nil || *s.ExitCode != 0 {
			t.Errorf("%s is %+v: %s", name, s, d.fuse("service", "logs", "fuse-shop", name).out)
		}
	}
	d.must("rm", "fuse-shop")
	d.must("image", "rm", web, "--all-hosts")
	d.stop()
}
