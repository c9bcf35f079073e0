package compose_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
	"github.com/fusevm/fuse/internal/playguard/compose"
)

const markedWeb = "services:\n  web:\n    image: a\n    x-fuse: {zero_downtime: true}\n"

// A mark goes to the head of the file, where the runner reads it, and is no
// change of the service.
func TestMark(t *testing.T) {
	plain, err := compose.Render(input(t, "services:\n  web:\n    image: a\n  db:\n    image: b\n"))
	if err != nil {
		t.Fatal(err)
	}
	for name, mark := range map[string]string{"true": "true", "text": `"true"`, "variable": `"${ROLL}"`, "default": `"${NO:-true}"`} {
		in := input(t, strings.Replace(markedWeb, "true", mark, 1)+"  db:\n    image: b\n    x-fuse: {zero_downtime: false}\n")
		in.Variables = map[string]string{"ROLL": "true"}
		r, err := compose.Render(in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		db, web := r.Services[0], r.Services[1]
		if db != plain.Services[0] || !web.Rolled || web.Digest != plain.Services[1].Digest {
			t.Errorf("%s: %+v, unmarked %+v", name, r.Services, plain.Services)
		}
		if want := "# fuse.roll web " + web.Digest + "\n" + string(plain.File); string(r.File) != want {
			t.Errorf("%s: %s\nwant %s", name, r.File, want)
		}
		if got := compose.Rolled(r.File); !slices.Equal(got, []string{"web"}) {
			t.Errorf("%s: %v", name, got)
		}
	}
	if got := compose.Rolled(plain.File); got != nil {
		t.Errorf("without a mark: %v", got)
	}
}

// What a marked service may have beside it.
func TestMarkAllows(t *testing.T) {
	for name, more := range map[string]string{
		"read-only bind":   "    volumes: ['./conf:/conf:ro,z']\n",
		"read-only volume": "    volumes: [{type: volume, source: v, target: /v, read_only: true}]\n",
		"tmpfs":            "    volumes: [{type: tmpfs, target: /tmp}]\n",
		"tmpfs key":        "    tmpfs: /tmp\n",
		"one replica":      "    deploy: {replicas: 1}\n    scale: 1\n",
		"expose":           "    expose: ['80']\n",
		"aliases":          "    networks: {back: {aliases: [www]}}\n",
		"no network":       "    network_mode: none\n",
	} {
		if r, err := compose.Render(input(t, markedWeb+more+"volumes:\n  v:\nnetworks:\n  back:\n")); err != nil || !r.Services[0].Rolled {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A mark that is wrong, or on a service that cannot run twice, is refused with
// its place, what is in the way and what to do.
func TestMarkRefused(t *testing.T) {
	for name, test := range map[string]struct{ file, want string }{
		"no mapping":     {"services:\n  web:\n    image: a\n    x-fuse: true\n", "compose.yml:4:5: x-fuse is a mapping"},
		"unknown key":    {"services:\n  web:\n    image: a\n    x-fuse: {zero_downtme: true}\n", "compose.yml:4:14: zero_downtme is not a key of x-fuse; there are job and zero_downtime"},
		"no truth":       {"services:\n  web:\n    image: a\n    x-fuse:\n      zero_downtime: maybe\n", "compose.yml:5:7: zero_downtime is true or false"},
		"nothing":        {"services:\n  web:\n    image: a\n    x-fuse: {}\n", "compose.yml:4:5: zero_downtime is true or false"},
		"container name": {markedWeb + "    container_name: www\n", "compose.yml:5:5: a service with a container_name"},
		"ports":          {markedWeb + "    ports: ['8080:80']\n", "compose.yml:5:5: service web is marked zero_downtime and cannot run twice: it publishes ports"},
		"any port":       {markedWeb + "    ports: ['80']\n", "compose.yml:5:5: "},
		"host network":   {markedWeb + "    network_mode: host\n", "compose.yml:5:5: service web is marked zero_downtime and cannot run twice: network_mode host"},
		"their network":  {markedWeb + "    network_mode: service:db\n  db: {image: b}\n", "network_mode service:db"},
		"volume":         {markedWeb + "    volumes: ['/x:/x:ro', 'v:/data']\nvolumes:\n  v:\n", "compose.yml:5:27: service web is marked zero_downtime and cannot run twice: both would write /data"},
		"long volume":    {markedWeb + "    volumes: [{type: volume, source: v, target: /data}]\nvolumes:\n  v:\n", "both would write /data"},
		"anonymous":      {markedWeb + "    volumes: ['/data']\n", "both would write /data"},
		"bind":           {markedWeb + "    volumes: ['./data:/data:rw']\n", "both would write /data"},
		"volumes from":   {markedWeb + "    volumes_from: [db]\n  db: {image: b}\n", "compose.yml:5:5: "},
		"replicas":       {markedWeb + "    deploy: {replicas: 2}\n", "compose.yml:5:14: service web is marked zero_downtime and cannot run twice: replicas is 2"},
		"global":         {markedWeb + "    deploy: {mode: global}\n", "mode is global"},
		"scale":          {markedWeb + "    scale: 0\n", "scale is 0"},
		"mac":            {markedWeb + "    mac_address: 02:42:ac:11:65:43\n", "mac_address"},
		"address":        {markedWeb + "    networks:\n      back: {ipv4_address: 10.1.2.3}\nnetworks:\n  back:\n", "compose.yml:6:14: service web is marked zero_downtime and cannot run twice: both would have the same ipv4_address"},
		"leaned on":      {markedWeb + "  aide:\n    image: b\n    network_mode: service:web\n", "compose.yml:7:5: service web is marked zero_downtime and cannot run twice: service aide has network_mode of its container"},
		"volumes shared": {markedWeb + "  aide:\n    image: b\n    volumes_from: ['web:ro']\n", "service aide has volumes_from of its container"},
	} {
		t.Run(name, func(t *testing.T) {
			in := input(t, test.file)
			in.Policy = compose.Policy{compose.DangerHostMount: compose.Allow, compose.DangerHostSpaces: compose.Allow}
			_, err := compose.Render(in)
			if fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%v, want %q", err, test.want)
			}
			var e *fleet.Error
			if strings.Contains(err.Error(), "cannot run twice") && (!errors.As(err, &e) || !strings.HasSuffix(e.Details[fleet.DetailRemedy], ", or take the mark away")) {
				t.Errorf("no remedy: %+v", e)
			}
		})
	}
}
