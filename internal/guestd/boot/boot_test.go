package boot

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/fusevm/fuse/internal/guestwire"
)

func write(t *testing.T, path, data string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func testMachine() *Machine {
	return &Machine{log: slog.New(slog.DiscardHandler), Config: guestwire.BootConfig{
		Hostname: "box", MachineID: strings.Repeat("0a", 16), Token: "token", CertPEM: "cert", KeyPEM: "key",
		Net: guestwire.BootNetwork{Nameservers: []string{"10.0.0.1", "fd00::1"}},
	}}
}

func TestEtcFollowsNoLinks(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	etc, outside := filepath.Join(root, "etc"), filepath.Join(root, "outside")
	write(t, outside, "untouched")
	for _, name := range []string{"resolv.conf", "hosts", "hostname", "machine-id"} {
		if err := os.MkdirAll(etc, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(etc, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := testMachine().writeEtc(etc); err != nil {
		t.Fatal(err)
	}
	if got := read(t, outside); got != "untouched" {
		t.Errorf("a link was followed: %q", got)
	}
	want := map[string]string{
		"resolv.conf": "nameserver 10.0.0.1\nnameserver fd00::1\n",
		"hostname":    "box\n",
		"machine-id":  strings.Repeat("0a", 16) + "\n",
		"hosts":       "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tbox\n",
	}
	got := map[string]string{}
	entries, err := os.ReadDir(etc)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Type().IsRegular() {
			got[e.Name()] = read(t, filepath.Join(etc, e.Name()))
		} else if e.Name() != "fuse" || !e.IsDir() {
			t.Errorf("%s is left in etc", e.Name())
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestHostsKeepsWhatItHas(t *testing.T) {
	t.Parallel()
	tests := []struct{ was, want string }{
		{"127.0.0.1 localhost", "127.0.0.1 localhost\n127.0.1.1\tbox\n"},
		{"127.0.1.1\told\n::1 old\n", "::1 old\n127.0.1.1\tbox\n"},
		{"10.0.0.9 other box # mine\n", "10.0.0.9 other box # mine\n"},
		{"# 10.0.0.9 box\n", "# 10.0.0.9 box\n127.0.1.1\tbox\n"},
		{"", "127.0.1.1\tbox\n"},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), "hosts")
		write(t, path, tt.was)
		if err := nameSelf(path, "old", "box"); err != nil {
			t.Fatal(err)
		}
		if got := read(t, path); got != tt.want {
			t.Errorf("%q became %q, want %q", tt.was, got, tt.want)
		}
	}
}

func TestEtcOfImagesThatLackOne(t *testing.T) {
	t.Parallel()
	m := testMachine()
	etc := filepath.Join(t.TempDir(), "etc")
	if err := m.writeEtc(etc); err != nil {
		t.Errorf("an image without /etc: %v", err)
	}
	// A directory in the way costs its own file alone.
	blocked := filepath.Join(t.TempDir(), "etc")
	write(t, filepath.Join(blocked, "resolv.conf", "x"), "")
	err := m.writeEtc(blocked)
	if err == nil || !strings.Contains(err.Error(), "resolv.conf") {
		t.Errorf("error is %v, want one about resolv.conf", err)
	}
	if got := read(t, filepath.Join(blocked, "hostname")); got != "box\n" {
		t.Errorf("hostname is %q", got)
	}
	if left, _ := filepath.Glob(filepath.Join(blocked, ".fuse-*")); len(left) > 0 {
		t.Errorf("temporary files are left: %v", left)
	}
}

func TestCredentialsArePrivate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := testMachine().writeCredentials(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"auth-token": "token", "tls/cert.pem": "cert", "tls/key.pem": "key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
		if got := read(t, filepath.Join(dir, name)); got != want {
			t.Errorf("%s is %q", name, got)
		}
	}
}

func TestFindDiskBySerial(t *testing.T) {
	t.Parallel()
	sys := t.TempDir()
	write(t, filepath.Join(sys, "vda", "serial"), "data\n")
	write(t, filepath.Join(sys, "vdb", "serial"), "root")
	write(t, filepath.Join(sys, "vdc", "size"), "12")
	for serial, want := range map[string]string{"root": "/dev/vdb", "data": "/dev/vda", "roo": "", "": ""} {
		if got := bySerial(sys, serial); got != want {
			t.Errorf("serial %q is %q, want %q", serial, got, want)
		}
	}
}

func TestWaitingForADeviceIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := poll(t.Context(), "a disk", func() bool { return false })
		if err == nil || !strings.Contains(err.Error(), "a disk did not appear within 1m0s") || time.Since(began) != deviceWait {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		tries := 0
		if err := poll(t.Context(), "a disk", func() bool { tries++; return tries == 3 }); err != nil {
			t.Error(err)
		}
	})
}

func TestExt4Size(t *testing.T) {
	t.Parallel()
	tests := []struct {
		size      int64
		args      []string
		blocks    uint64
		blockSize uint64
	}{
		{64 << 20, []string{"-b", "1024"}, 65536, 1024},
		{64 << 20, []string{"-b", "4096"}, 16384, 4096},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), "fs")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, tt.size); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("mke2fs", append(append([]string{"-q", "-t", "ext4"}, tt.args...), path)...).CombinedOutput(); err != nil {
			t.Fatalf("mke2fs: %v\n%s", err, out)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		super := make([]byte, 1024)
		_, err = f.ReadAt(super, 1024)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		if blocks, size, err := ext4Size(super); err != nil || blocks != tt.blocks || size != tt.blockSize {
			t.Errorf("%d blocks of %d, %v; want %d of %d", blocks, size, err, tt.blocks, tt.blockSize)
		}
	}
	large := make([]byte, 1024) // 2^32 + 7 blocks of 4 KiB
	for at, b := range map[int]byte{56: 0x53, 57: 0xEF, 24: 2, 4: 7, 96: 0x80, 0x150: 1} {
		large[at] = b
	}
	if blocks, _, err := ext4Size(large); err != nil || blocks != 1<<32+7 {
		t.Errorf("%d blocks, %v; want 2^32+7", blocks, err)
	}
	if _, _, err := ext4Size(make([]byte, 1024)); err == nil {
		t.Error("an empty superblock was read")
	}
}

func FuzzExt4Size(f *testing.F) {
	valid := make([]byte, 1024)
	valid[56], valid[57] = 0x53, 0xEF
	f.Add(valid)
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, super []byte) {
		_, size, err := ext4Size(super)
		if err == nil && (size < 1024 || size > 65536) {
			t.Errorf("blocks of %d bytes", size)
		}
	})
}

// The initramfs is emptied without a step into what is mounted on it.
func TestEmptyDirStaysOnItsFilesystem(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	mounted := filepath.Join(root, "newroot")
	write(t, filepath.Join(root, "fuse-init", "config.json"), "secret")
	write(t, filepath.Join(root, "init"), "program")
	if err := os.Mkdir(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", mounted, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mounted, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	write(t, filepath.Join(mounted, "etc", "passwd"), "kept")
	var st syscall.Stat_t
	if err := syscall.Lstat(root, &st); err != nil {
		t.Fatal(err)
	}
	if err := emptyDir(root, st.Dev); err != nil {
		t.Fatal(err)
	}
	if got := read(t, filepath.Join(mounted, "etc", "passwd")); got != "kept" {
		t.Errorf("the mounted file is %q", got)
	}
	for _, gone := range []string{"fuse-init", "init"} {
		if _, err := os.Lstat(filepath.Join(root, gone)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left: %v", gone, err)
		}
	}
}

func TestModuleList(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "modules")
	if got, err := moduleList(path); err != nil || got != nil {
		t.Errorf("no list: %v, %v", got, err)
	}
	write(t, path, "/a/b.ko\n/c.ko\n\n")
	got, err := moduleList(path)
	if diff := cmp.Diff([]string{"/a/b.ko", "/c.ko"}, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
}

func TestUserProcesses(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	for pid, line := range map[string]string{"1": "/init", "2": "", "40": "sleep\x0010\x00", "41": "\x00", "self": "x"} {
		write(t, filepath.Join(proc, pid, "cmdline"), line)
	}
	if got := userProcesses(proc); got != 1 {
		t.Errorf("%d processes, want 1", got)
	}
}

// On a real link of a namespace of its own: address, MTU, neighbour and route
// are there, and doing it again changes nothing.
func TestConfigureNetwork(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if _, err := netns.New(); err != nil {
		t.Fatal(err)
	}
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: InterfaceName}, PeerName: "peer"}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	m := testMachine()
	m.Config.Net = guestwire.BootNetwork{Address: "10.9.0.2/30", Gateway: "10.9.0.1", GatewayMAC: "02:00:00:00:00:01", MTU: 1400}
	for range 2 {
		if err := m.setUpNetwork(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	got, err := netlink.LinkByName(InterfaceName)
	if err != nil || got.Attrs().MTU != 1400 || got.Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("link is %+v, %v", got, err)
	}
	addrs, err := netlink.AddrList(got, netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 || addrs[0].IPNet.String() != "10.9.0.2/30" {
		t.Errorf("addresses are %v, %v", addrs, err)
	}
	neighs, err := netlink.NeighList(got.Attrs().Index, netlink.FAMILY_V4)
	if err != nil || len(neighs) != 1 || neighs[0].State != netlink.NUD_PERMANENT || neighs[0].HardwareAddr.String() != "02:00:00:00:00:01" {
		t.Errorf("neighbours are %v, %v", neighs, err)
	}
	routes, err := netlink.RouteGet(net.IPv4(8, 8, 8, 8))
	if err != nil || len(routes) != 1 || !routes[0].Gw.Equal(net.IPv4(10, 9, 0, 1)) {
		t.Errorf("the way out is %v, %v", routes, err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil || lo.Attrs().Flags&net.FlagUp == 0 {
		t.Errorf("lo is %+v, %v", lo, err)
	}
}

// What is a file of root's own by one name keeps its inode; all else is replaced
// and what it led to stays as it was.
func TestPutFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		make  func(t *testing.T, path, other string)
		stays bool
	}{
		"shorter":      {func(t *testing.T, path, _ string) { write(t, path, "x"); chmod(t, path, 0o444) }, true},
		"longer":       {func(t *testing.T, path, _ string) { write(t, path, "much longer than that"); chmod(t, path, 0o444) }, true},
		"another mode": {func(t *testing.T, path, _ string) { write(t, path, "x"); chmod(t, path, 0o600) }, false},
		"none":         {func(*testing.T, string, string) {}, false},
		"link":         {func(t *testing.T, path, other string) { must(t, os.Symlink(other, path)) }, false},
		"dangling":     {func(t *testing.T, path, _ string) { must(t, os.Symlink("/nowhere/at/all", path)) }, false},
		"two names":    {func(t *testing.T, path, other string) { chmod(t, other, 0o444); must(t, os.Link(other, path)) }, false},
		"fifo":         {func(t *testing.T, path, _ string) { must(t, syscall.Mkfifo(path, 0o444)) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path, other := filepath.Join(dir, "file"), filepath.Join(dir, "other")
			write(t, other, "other's")
			c.make(t, path, other)
			before, _ := os.Lstat(path)
			if err := PutFile(path, []byte("content\n"), 0o444); err != nil {
				t.Fatal(err)
			}
			after, err := os.Lstat(path)
			if err != nil || after.Mode() != 0o444 || read(t, path) != "content\n" || read(t, other) != "other's" {
				t.Errorf("%v %v: %q, and beside it %q", err, after, read(t, path), read(t, other))
			}
			if before != nil && os.SameFile(before, after) != c.stays {
				t.Errorf("the same file: %v", !c.stays)
			}
		})
	}
}

func chmod(t *testing.T, path string, mode os.FileMode) { t.Helper(); must(t, os.Chmod(path, mode)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
