package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/testkit"
)

// answered gets a page and returns its text.
func answered(url string) (string, error) {
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return strings.TrimSpace(string(body)), err
}

// echoed sends a datagram and returns the answer.
func echoed(address, text string) (string, error) {
	conn, err := net.Dial("udp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(text)); err != nil {
		return "", err
	}
	buf := make([]byte, 1024)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

// echoSource sends back the datagrams that come to port 5300.
const echoSource = `package main

import "net"

func main() {
	c, err := net.ListenPacket("udp4", ":5300")
	if err != nil {
		panic(err)
	}
	for buf := make([]byte, 1500); ; {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			panic(err)
		}
		_, _ = c.WriteTo(buf[:n], from)
	}
}
`

// echoProgram builds it: the minimal image has no server of datagrams.
func echoProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "echo")
	if err := os.WriteFile(source, []byte(echoSource), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", program, source)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// hostAddress is one of this machine's that is not the loopback's.
func hostAddress(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() {
			return n.IP.String()
		}
	}
	return "127.0.0.1" // a machine without any other
}

// reachAgent asks the guest agent at the environment's url: with TLS, and with
// nothing but its health for those without the machine's token.
func reachAgent(t *testing.T, d *daemon, id string) {
	t.Helper()
	var env struct{ URL string }
	if err := json.Unmarshal([]byte(d.must("get", id, "-o", "json")), &env); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, // whose certificate it is does not matter here
	}}
	for path, want := range map[string]int{"/health": http.StatusOK, "/v1/info": http.StatusUnauthorized, "/": http.StatusNotFound} {
		resp, err := client.Get("https://" + env.URL + path)
		if err != nil {
			t.Errorf("url %q: %v", env.URL, err)
			continue
		}
		if resp.Body.Close(); resp.StatusCode != want {
			t.Errorf("%s answers %d, want %d", path, resp.StatusCode, want)
		}
	}
	if text, err := answered("http://" + env.URL + "/health"); err == nil && !strings.Contains(text, "HTTPS") {
		t.Errorf("without TLS it answers %q", text)
	}
}

// TestPublishedPorts serves from a real machine: published, over a restart of
// server and host agent, changed while it runs, and forwarded by the API.
func TestPublishedPorts(t *testing.T) {
	t.Parallel()
	before := hostObjects(t)
	d := dev(t, bins.fuse, machineDir(t), nil)
	// Names can be looked up from the script on; what it starts is served.
	d.must("create", "--task-id", "ports", "--ram-mb", "256", "--expose", "web=8080", "--expose", "5300/udp", "--expose", "agent=9550", "--startup-script",
		"grep -q '^nameserver 10.9.1.53' /etc/resolv.conf || exit 9; mkdir -p /www; echo hello >/www/index.html; httpd -p 8080 -h /www")
	const id = "fuse-ports"
	web := strings.TrimSpace(d.must("port", id, "web"))
	_, number, err := net.SplitHostPort(web)
	if err != nil {
		t.Fatal(err)
	}
	datagrams := strings.TrimSpace(d.must("port", id, "5300/udp"))
	serves := func(when string) {
		t.Helper()
		for _, address := range []string{web, net.JoinHostPort(hostAddress(t), number)} {
			if text, err := answered("http://" + address); text != "hello" || err != nil {
				t.Errorf("%s: %s answers %q, %v", when, address, text, err)
			}
		}
	}
	serves("at first")
	reachAgent(t, d, id)
	d.must("cp", echoProgram(t), id+":/root/echo")
	d.must("process", "start", id, "--", "/root/echo")
	testkit.Eventually(t, time.Minute, "datagrams come back", func() bool {
		text, err := echoed(datagrams, "ping")
		return text == "ping" && err == nil
	})
	d.kill()
	*d = *dev(t, bins.fuse, d.dir, nil)
	serves("after a restart")

	d.must("update", id, "--expose", "web=8080")
	serves("with one port less")
	if text, err := echoed(datagrams, "ping"); err == nil {
		t.Errorf("a port that is gone answers %q", text)
	}
	d.must("update", id, "--expose", "none")
	if text, err := answered("http://" + web); err == nil {
		t.Errorf("a port that is gone answers %q", text)
	}

	f := start(t, bins.fuse, d.dir, []string{"XDG_CONFIG_HOME=" + d.home}, "port-forward", id, "0:8080")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	line, ok := f.out.line(ctx, "forwarding ")
	if !ok {
		t.Fatalf("nothing is forwarded: %s", f.out)
	}
	local, _, _ := strings.Cut(line, " ")
	for n := range 20 {
		if text, err := answered(fmt.Sprintf("http://%s/?%d", local, n)); text != "hello" || err != nil {
			t.Fatalf("forwarded: %q, %v", text, err)
		}
	}
	f.stop()
	d.must("rm", id)
	d.stop()
	sameObjects(t, before)
}
