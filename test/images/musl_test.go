package images

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/hostd/image/imagetest"
	"github.com/fusevm/fuse/internal/hostd/image/ocitest"
	"github.com/fusevm/fuse/internal/hostd/network"
	"github.com/fusevm/fuse/internal/hostd/qemu"
	"github.com/fusevm/fuse/test/guests"
)

// muslProgram looks names up by its libc. It begins without that libc's own
// start files, which need a compiler of their own.
const muslProgram = `
struct addrinfo { int flags, family, socktype, protocol; unsigned len; char *addr; char *name; struct addrinfo *next; };
int getaddrinfo(const char *, const char *, const struct addrinfo *, struct addrinfo **);
const char *gai_strerror(int);
const char *inet_ntop(int, const void *, char *, unsigned);
int printf(const char *, ...);
int fflush(void *);
void exit(int);
char *getenv(const char *);
int getuid(void);
static int run(int argc, char **argv) {
	printf("uid=%d GREETING=%s\n", getuid(), getenv("GREETING"));
	for (int i = 1; i < argc; i++) {
		struct addrinfo hints = {0, 2, 1}, *got;
		char text[64];
		int err = getaddrinfo(argv[i], "80", &hints, &got);
		if (err) {
			printf("%s: %s\n", argv[i], gai_strerror(err));
			return 1;
		}
		printf("%s is %s\n", argv[i], inet_ntop(2, got->addr + 4, text, sizeof text));
	}
	return 0;
}
void begin(long *sp) { int code = run((int)*sp, (char **)(sp + 1)); fflush(0); exit(code); }
#ifdef __x86_64__
__asm__(".globl _start\n_start:\n mov %rsp, %rdi\n and $-16, %rsp\n call begin\n");
#else
__asm__(".globl _start\n_start:\n mov x0, sp\n bl begin\n");
#endif
`

// musl is a root with Debian's musl, that program, and no other libc.
func musl(t *testing.T) []ocitest.File {
	t.Helper()
	machine := map[string]string{fleet.ArchAMD64: "x86_64", fleet.ArchARM64: "aarch64"}[arch()]
	debs, dir := filepath.Join(imagetest.Dir(), "cache", "musl"), t.TempDir()
	if err := os.MkdirAll(debs, 0o755); err != nil {
		t.Fatal(err)
	}
	find := func() []string { found, _ := filepath.Glob(filepath.Join(debs, "musl_*.deb")); return found }
	if len(find()) == 0 {
		cmd := exec.Command("apt-get", "download", "musl")
		cmd.Dir = debs
		output(t, cmd)
	}
	output(t, exec.Command("dpkg-deb", "-x", find()[0], dir))
	lib := filepath.Join(dir, "lib", machine+"-linux-musl")
	src, out := filepath.Join(dir, "main.c"), filepath.Join(dir, "main")
	if err := os.WriteFile(src, []byte(muslProgram), 0o600); err != nil {
		t.Fatal(err)
	}
	loader := "/lib/ld-musl-" + machine + ".so.1"
	output(t, exec.Command("gcc", "-O1", "-nostdlib", "-fno-stack-protector", "-fno-builtin", "-o", out, src, "-L"+lib, "-lc", "-Wl,--dynamic-linker="+loader))
	return []ocitest.File{ocitest.Program(strings.TrimPrefix(loader, "/"), read(t, filepath.Join(lib, "libc.so"))), ocitest.Program("bin/lookup", read(t, out))}
}

// resolver answers at a real address of this machine, as dnsmasq would. Links of
// slots and of containers come and go with other tests.
func resolver(t *testing.T) netip.Addr {
	t.Helper()
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	passing := regexp.MustCompile(`^(lo|fuse|veth|br-|docker)`)
	for _, l := range links {
		addrs, err := l.Addrs()
		if err != nil || passing.MatchString(l.Name) {
			continue
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || !p.Addr().Is4() {
				continue
			}
			conn, err := net.ListenPacket("udp4", net.JoinHostPort(p.Addr().String(), "53"))
			if err != nil {
				continue
			}
			done := make(chan struct{})
			go func() { defer close(done); answer(conn) }()
			t.Cleanup(func() { _ = conn.Close(); <-done })
			return p.Addr()
		}
	}
	t.Fatal("this machine has no address of its own whose port 53 is free")
	return netip.Addr{}
}

// answer knows one name.
func answer(conn net.PacketConn) {
	buf := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
		switch q := m.Questions[0]; {
		case q.Name.String() != "first.example.test.":
			m.RCode = dnsmessage.RCodeNameError
		case q.Type == dnsmessage.TypeA:
			m.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60}, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 7}},
			}}
		}
		if out, err := m.Pack(); err == nil {
			_, _ = conn.WriteTo(out, from)
		}
	}
}

// An image whose libc is musl boots, and its first command looks a name up by
// that libc and the host's resolver.
func TestMuslAndNamesFromTheFirstInstruction(t *testing.T) {
	h := guests.New(t, qemu.Config{Network: network.Config{Resolvers: []netip.Addr{resolver(t)}}})
	r := ocitest.New(t)
	ref := r.Push(t, "alpine/like:1", ocitest.Image(t, arch(), v1.Config{User: "1000", Env: []string{"GREETING=hello"}}, ocitest.Layer(t, musl(t)...)))
	m := h.Boot(h.Pull(ref), nil)
	if got, want := run(t, m, fleet.ExecSpec{Argv: []string{"lookup", "first.example.test"}}), "uid=1000 GREETING=hello\nfirst.example.test is 192.0.2.7\n"; got != want {
		t.Errorf("got %q, want %q on %s", got, want, runtime.GOARCH)
	}
	// A name that is not there is said not to be.
	var out bytes.Buffer
	status, err := m.Guest().Exec(t.Context(), fleet.ExecSpec{Argv: []string{"lookup", "other.example.test"}}, fleet.Stdio{Stdout: &out})
	if err != nil || status.ExitCode != 1 || !strings.Contains(out.String(), "not") {
		t.Errorf("a name that is not there: %+v, %v: %s", status, err, out.String())
	}
}
