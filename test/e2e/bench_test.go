package e2e

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/testkit"
)

// BenchmarkExecBesideSSH measures a command's round trip into one guest four
// ways, in turns: `fuse exec` and `ssh` as whole processes with a new
// connection each, and both over a connection that is kept (the API, and an
// ssh master). The ssh server is dropbear, put into the guest for this.
func BenchmarkExecBesideSSH(b *testing.B) {
	d := dev(b, bins.fuse, machineDir(b), nil)
	before := namespaces(b)
	d.must("create", "--task-id", "bench", "--ram-mb", "256")
	const id = "fuse-bench"
	b.Cleanup(func() { // machines outlive their daemon
		d.must("rm", id)
		d.stop()
	})
	made := slices.DeleteFunc(namespaces(b), func(n string) bool { return slices.Contains(before, n) })
	if len(made) != 1 {
		b.Fatalf("the machine has namespaces %v: is something else starting machines?", made)
	}
	ssh := installSSH(b, d, id, made[0])
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ways := []struct {
		name string
		once func() error
	}{
		{"fuse-ms", func() error {
			if o := d.fuse("exec", id, "--", "true"); o.code != 0 {
				return fmt.Errorf("%+v", o)
			}
			return nil
		}},
		{"ssh-ms", func() error { return ssh.run("-o", "ControlPath=none", "true") }},
		{"fuse-api-ms", func() error { return d.execOnce(client, id) }},
		{"ssh-master-ms", func() error { return ssh.run("-o", "ControlPath="+ssh.master, "true") }},
	}
	times := make([][]time.Duration, len(ways))
	for b.Loop() {
		for i, w := range ways {
			begin := time.Now()
			if err := w.once(); err != nil {
				b.Fatalf("%s: %v", w.name, err)
			}
			times[i] = append(times[i], time.Since(begin))
		}
	}
	for i, w := range ways {
		slices.Sort(times[i])
		b.ReportMetric(float64(times[i][len(times[i])/2].Microseconds())/1000, w.name)
	}
	b.ReportMetric(0, "ns/op")
}

// execOnce runs true in the environment through the API on a kept connection.
func (d *daemon) execOnce(client *http.Client, id string) error {
	req, err := http.NewRequest(http.MethodPost, d.url+"/v1/environments/"+id+"?action=exec", strings.NewReader(`{"cmd":["true"]}`))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+d.token())
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	var out struct {
		ExitCode *int `json:"exit_code"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return err
	}
	if out.ExitCode == nil || *out.ExitCode != 0 {
		return fmt.Errorf("status %s, exit code %v", resp.Status, out.ExitCode)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// sshClient reaches an ssh server inside a slot's namespace.
type sshClient struct{ netns, key, master string }

func (s sshClient) command(args ...string) *exec.Cmd {
	base := []string{
		"netns", "exec", s.netns, "ssh", "-i", s.key, "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null",
		"-o", "LogLevel=ERROR", "-o", "BatchMode=yes",
	}
	// Options come before the destination, the command after it.
	at := slices.IndexFunc(args, func(a string) bool { return a == "true" })
	if at < 0 {
		at = len(args)
	}
	args = slices.Insert(slices.Clone(args), at, "root@"+network.GuestAddr.String())
	return exec.Command("ip", append(base, args...)...)
}

func (s sshClient) run(args ...string) error {
	if out, err := s.command(args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// installSSH puts dropbear with its libraries into the guest, starts it, and
// opens a master connection.
func installSSH(b *testing.B, d *daemon, id, netns string) sshClient {
	b.Helper()
	dir := b.TempDir()
	s := sshClient{netns: netns, key: filepath.Join(dir, "key"), master: filepath.Join(dir, "master")}
	if err := runIn(dir, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", s.key); err != nil {
		b.Fatal(err)
	}
	pub, err := os.ReadFile(s.key + ".pub")
	if err != nil {
		b.Fatal(err)
	}
	archive := dropbearTar(b, pub)
	// A command's standard input is limited to one request's body.
	for part := range slices.Chunk(archive, 600<<10) {
		if o := d.fuseIn(string(part), "exec", "-i", id, "--", "sh", "-c", "cat >> /tmp/dropbear.tar"); o.code != 0 {
			b.Fatalf("upload: %+v", o)
		}
	}
	d.must("exec", id, "--", "sh", "-c", "tar -xf /tmp/dropbear.tar -C / && chmod 700 /root /root/.ssh && mkdir -p /etc/dropbear && "+
		"(dropbear -R -F -E -s > /tmp/dropbear.log 2>&1 &)")
	testkit.Eventually(b, 30*time.Second, "sshd answers", func() bool { return s.run("-o", "ControlPath=none", "true") == nil })
	master := s.command("-o", "ControlMaster=yes", "-o", "ControlPath="+s.master, "-N")
	if err := master.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = master.Process.Kill() // it may have ended with the guest
		_ = master.Wait()         // it was killed
	})
	testkit.Eventually(b, 20*time.Second, "the master connection is open", func() bool {
		_, err := os.Stat(s.master)
		return err == nil
	})
	return s
}

// dropbearTar packs the host's dropbear, its libraries and the public key.
func dropbearTar(b *testing.B, pub []byte) []byte {
	b.Helper()
	path, err := exec.LookPath("dropbear")
	if err != nil {
		path = "/usr/sbin/dropbear"
	}
	out, err := exec.Command("ldd", path).Output()
	if err != nil {
		b.Fatal(err)
	}
	files := map[string]string{"/usr/sbin/dropbear": path}
	for _, w := range strings.Fields(string(out)) {
		if strings.HasPrefix(w, "/") {
			files[w] = w
		}
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	add := func(name string, mode int64, data []byte) {
		if err := tw.WriteHeader(&tar.Header{Name: strings.TrimPrefix(name, "/"), Mode: mode, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
			b.Fatal(err)
		}
		if _, err := tw.Write(data); err != nil {
			b.Fatal(err)
		}
	}
	for name, from := range files {
		data, err := os.ReadFile(from)
		if err != nil {
			b.Fatal(err)
		}
		add(name, 0o755, data)
	}
	add("/root/.ssh/authorized_keys", 0o600, pub)
	if err := tw.Close(); err != nil {
		b.Fatal(err)
	}
	return buf.Bytes()
}

// namespaces lists the network namespaces of this machine.
func namespaces(b *testing.B) []string {
	b.Helper()
	out, err := exec.Command("ip", "netns", "list").Output()
	if err != nil {
		b.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), " ")
		names = append(names, name)
	}
	return names
}
