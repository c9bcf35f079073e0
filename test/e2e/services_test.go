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
	c, err := net.DialTimeout("tcp", addr, 2*time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil
}

func list(name string) []string { return strings.Fields(os.Getenv(name)) }

func main() {
	if len(os.Args) == 3 && os.Args[1] == "probe" {
		if !up("127.0.0.1:" + os.Args[2]) {
			os.Exit(1)
		}
		return
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
func serviceImage(t *testing.T) v1.Image {
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
	return ocitest.Image(t, fleet.NormalizeArch(runtime.GOARCH), v1.Config{Entrypoint: []string{"/service"}, Env: []string{"FROM=image"}},
		ocitest.Layer(t, ocitest.Program("service", program)))
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
	r := ocitest.New(t)
	img := serviceImage(t)
	db, web := r.Push(t, "team/db:v1", img), r.Push(t, "team/web:v1", img)
	probe := func(port int) string {
		return fmt.Sprintf(`"healthcheck":{"test":["CMD","/service","probe","%d"],"interval":"5s","timeout":"5s","retries":12}`, port)
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
	if last["db"].Health != "passing" || last["app"].Health != "passing" || last["app"].Restarts != 1 || last["db"].Restarts != 0 || last["web"].Restarts != 0 {
		t.Errorf("they are %+v", last)
	}
	if log := d.must("service", "logs", "fuse-shop", "db"); !strings.Contains(log, "host db secret hidden") || strings.Contains(log, "pid 1 ") {
		t.Errorf("db said %q", log)
	}
	text := d.must("get", "fuse-shop", "--json")
	if !strings.Contains(text, db+"@sha256:") || !strings.Contains(text, web+"@sha256:") {
		t.Errorf("what the images stood for is not recorded: %s", text)
	}
	if got := d.must("exec", "fuse-shop", "--", "sh", "-c", "ls /service 2>&1 || true; nc -z 127.0.0.1 7003 && echo reached"); !strings.Contains(got, "No such file") || !strings.Contains(got, "reached") {
		t.Errorf("the environment sees %q", got)
	}
	if out := d.fuse("image", "rm", web, "--all-hosts"); out.code == 0 || !strings.Contains(out.out, "in use") {
		t.Errorf("remove one in use: exit %d: %s%s", out.code, out.out, out.err)
	}
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
