package addresses_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/playguard/addresses"
	"github.com/fusevm/fuse/internal/playguard/model"
	"github.com/fusevm/fuse/internal/playguard/observe"
)

// look is one at a project of two containers, as Docker tells of their ports.
func look(t *testing.T, ports string) observe.ProjectLook {
	t.Helper()
	const nonce = "00112233445566778899aabbccddeeff"
	id := model.Identity{Installation: "inst1", MachineID: "m", DaemonID: "d", DataRoot: "/data", Witness: "inst1"}
	container := func(service, state, ports string) string {
		return fmt.Sprintf(`{"id":"c%s","name":"/x","state":%q,"exit":0,"health":"","restart":"no","finished":"0001-01-01T00:00:00Z","ports":%s,`+
			`"labels":{%q:"inst1",%q:"p1","com.docker.compose.project":"shop--p1","com.docker.compose.service":%q}}`+"\n",
			service, state, ports, model.LabelInstallation, model.LabelPlayground, service)
	}
	frame, err := observe.Encode(nonce, []observe.Part{
		{Name: "host", Out: []byte("installation=inst1\nmachine_id=m\nboot_id=b\nclock=100\nuptime=9\nepoch=1\ndisk_free=1\nodd_dirs=0\n")},
		{Name: "daemon", Out: []byte("id=d\nroot=/data\nwitness=inst1\nversion=28\nstorage=x\nstarted=1\n")},
		{Name: "compose", Out: []byte("flavour=v2\nversion=2.40.3\n")},
		{Name: "containers", Out: []byte(container("web", "running", ports) + container("old", "exited", `{"80/tcp":[{"HostIp":"0.0.0.0","HostPort":"81"}]}`) + container("none", "running", "null"))},
		{Name: "foreign"}, {Name: "volumes"}, {Name: "ops"}, {Name: "projects"},
	})
	if err != nil {
		t.Fatal(err)
	}
	project, err := model.ParseProject("shop--p1")
	if err != nil {
		t.Fatal(err)
	}
	return observe.Conclude(observe.Trip{Nonce: nonce, Ending: observe.EndedExit, Stdout: frame}, id).Project(project)
}

func TestAddresses(t *testing.T) {
	p := look(t, `{"80/tcp":[{"HostIp":"0.0.0.0","HostPort":"8080"},{"HostIp":"::","HostPort":"8080"}],"53/udp":[{"HostIp":"127.0.0.1","HostPort":"5353"}],`+
		`"9/tcp":[{"HostIp":"192.0.2.7","HostPort":"90"}],"443/tcp":null,"1/tcp":[{"HostIp":"","HostPort":"x"}]}`)
	routes := []model.Route{{Host: "shop.example.org", Service: "web", Port: 80, Proxy: "caddy"}}
	want := []addresses.Address{
		{Service: "web", Inside: "80/tcp", Address: "shop.example.org", Scope: "caddy"},
		{Service: "web", Inside: "53/udp", Address: "127.0.0.1:5353", Scope: "host"},
		{Service: "web", Inside: "80/tcp", Address: "box.example.org:8080", Scope: "public"},
		{Service: "web", Inside: "9/tcp", Address: "192.0.2.7:90", Scope: "public"},
	}
	if diff := cmp.Diff(want, addresses.Of(p, "box.example.org:22", routes)); diff != "" {
		t.Error(diff)
	}
	if got := addresses.Of(look(t, `{"80/tcp":[{"HostIp":"::","HostPort":"80"}]}`), "[2001:db8::1]:2222", nil); len(got) != 1 || got[0].Address != "[2001:db8::1]:80" {
		t.Errorf("%+v", got)
	}
}

// Nothing is shown of what was not seen; the names are the record's.
func TestUnseen(t *testing.T) {
	got := addresses.Of(observe.ProjectLook{}, "box:22", []model.Route{{Host: "a.example.org", Service: "web", Port: 80, Proxy: "traefik"}})
	if len(got) != 1 || got[0].Scope != "traefik" {
		t.Errorf("%+v", got)
	}
}
