package rig

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// Bystanders are on a host beside us: containers of a foreign Compose project,
// some without any label, volumes with data, networks, an image, and a
// playground of a second installation with its directory.
type Bystanders struct {
	t      testing.TB
	api    *api
	docker *dockertest.Daemon
	dirs   []string
	run    []string // ids of the containers that run
}

// Other is the installation that the bystanders' playground belongs to.
const Other model.InstallationID = "other"

// AddBystanders puts them there; roots are where we have directories.
func AddBystanders(t testing.TB, d *dockertest.Daemon, roots ...string) *Bystanders {
	t.Helper()
	b := &Bystanders{t: t, api: newAPI(t, d), docker: d}
	run := func(args ...string) {
		t.Helper()
		if _, err := d.Docker(args...); err != nil {
			t.Fatal(err)
		}
	}
	forever := []string{dockertest.Image, "sh", "-c", `trap "exit 0" TERM; test -s /data/file || echo mine >/data/file; while :; do sleep 3600 & wait; done`}
	run("network", "create", "--label", "com.docker.compose.project=app", "bystander_net")
	run("volume", "create", "--label", "com.docker.compose.project=app", "bystander_data")
	run(append([]string{
		"run", "-d", "--name", "bystander_web_1", "--network", "bystander_net", "-v", "bystander_data:/data",
		"--label", "com.docker.compose.project=app", "--label", "com.docker.compose.service=web",
	}, forever...)...)
	run(append([]string{"run", "-d", "--name", "bystander_plain", "--network", "none", "-v", "bystander_plain:/data"}, forever...)...)
	run("create", "--name", "bystander_stopped", "--network", "none", "-v", "bystander_stopped:/data", dockertest.Image, "true")
	run("tag", dockertest.Image, "bystander/image:1")
	theirs := "app--twin"
	run(append([]string{
		"run", "-d", "--name", theirs + "_web_1", "--network", "none", "-v", theirs + "_data:/data",
		"--label", model.LabelInstallation + "=" + string(Other), "--label", model.LabelPlayground + "=twin",
		"--label", "com.docker.compose.project=" + theirs, "--label", "com.docker.compose.service=web",
	}, forever...)...)
	for _, name := range []string{"bystander_web_1", "bystander_plain", theirs + "_web_1"} { // as it will be from now on
		run("exec", name, "sh", "-c", "until test -s /data/file; do sleep 0.1; done")
	}
	run("volume", "create", "--label", model.LabelWitness+"="+string(Other), "fuse-witness-"+string(Other))
	for _, root := range roots {
		project, err := model.ParseProject(theirs)
		if err != nil {
			t.Fatal(err)
		}
		marker, err := model.Marker{Kind: model.KindPlayground, Installation: Other, Marquee: "mq9", Playground: "twin", Project: project, Epoch: 1}.Encode()
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{
			"playgrounds/" + theirs + "/compose.yml": "services: {}\n", "playgrounds/" + theirs + "/.fuse/owner.json": string(marker),
			"playgrounds/not ours/file": "mine\n", "installations/" + string(Other): "", "fence/" + string(Other) + "/epoch": "7\n",
		} {
			at := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(at), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		b.dirs = append(b.dirs, filepath.Join(root, "playgrounds", theirs), filepath.Join(root, "playgrounds", "not ours"),
			filepath.Join(root, "installations", string(Other)), filepath.Join(root, "fence", string(Other)))
	}
	for _, c := range b.api.containers(nil) {
		b.run = append(b.run, c.ID)
	}
	return b
}

// Revive starts those that ran in the beginning. What is left of them below the
// daemon's /run, which a host that lost power would have lost too, is in the way.
func (b *Bystanders) Revive() {
	b.t.Helper()
	for _, c := range b.api.containers(url.Values{"all": {"1"}}) {
		if c.State == "exited" && slices.Contains(b.run, c.ID) {
			if err := os.RemoveAll(filepath.Join(b.docker.Dir, "exec/containerd/daemon/io.containerd.runtime.v2.task/moby", c.ID)); err != nil {
				b.t.Fatal(err)
			}
			b.api.do(http.MethodPost, "/containers/"+c.ID+"/start", nil, nil)
		}
	}
}

// Disturbed reports whether one of them does not run any more, as after an end of
// the daemon. Docker 20.10 cannot always start it again: what its process left
// below /run is in the way.
func (b *Bystanders) Disturbed() bool {
	b.t.Helper()
	running := 0
	for _, c := range b.api.containers(nil) {
		if slices.Contains(b.run, c.ID) {
			running++
		}
	}
	return running < len(b.run)
}

// imageLine begins the line of an image in an inventory.
const imageLine = "image "

// Inventory is everything on the host that carries none of our labels, in
// bytes that are equal if and only if nothing of it has changed.
func (b *Bystanders) Inventory(ours ...model.InstallationID) string {
	b.t.Helper()
	var out strings.Builder
	mine := func(labels map[string]string) bool {
		return slices.ContainsFunc(ours, func(id model.InstallationID) bool {
			return labels[model.LabelInstallation] == string(id) || labels[model.LabelWitness] == string(id)
		})
	}
	for _, c := range b.api.containers(url.Values{"all": {"1"}}) {
		if mine(c.Labels) {
			continue
		}
		var all map[string]any
		b.api.get("/containers/"+c.ID+"/json", nil, &all)
		state, _ := all["State"].(map[string]any)
		fmt.Fprintf(&out, "container %s\n", marshal(b.t, map[string]any{
			"id": all["Id"], "name": all["Name"], "created": all["Created"], "image": all["Image"], "config": all["Config"], "host": all["HostConfig"],
			"mounts": all["Mounts"], "restarts": all["RestartCount"], "state": state["Status"], "started": state["StartedAt"], "pid": state["Pid"],
		}))
	}
	var volumes struct{ Volumes []map[string]any }
	b.api.get("/volumes", nil, &volumes)
	sortBy(volumes.Volumes, "Name")
	for _, v := range volumes.Volumes {
		if mine(labelsOf(v["Labels"])) {
			continue
		}
		fmt.Fprintf(&out, "volume %s\n", marshal(b.t, v))
		if at, ok := v["Mountpoint"].(string); ok {
			tree(b.t, &out, at)
		}
	}
	var networks []map[string]any
	b.api.get("/networks", nil, &networks)
	sortBy(networks, "Id")
	for _, n := range networks {
		if mine(labelsOf(n["Labels"])) {
			continue
		}
		fmt.Fprintf(&out, "network %s\n", marshal(b.t, map[string]any{"id": n["Id"], "name": n["Name"], "labels": n["Labels"], "driver": n["Driver"], "ipam": n["IPAM"]}))
	}
	var images []struct {
		ID       string `json:"Id"`
		RepoTags []string
	}
	b.api.get("/images/json", nil, &images)
	var kept []string
	for _, i := range images {
		for _, tag := range i.RepoTags {
			if !strings.HasPrefix(tag, "fuse-test/mark:") { // of the watcher
				kept = append(kept, imageLine+i.ID+" "+tag+"\n")
			}
		}
	}
	slices.Sort(kept)
	out.WriteString(strings.Join(kept, ""))
	for _, dir := range b.dirs {
		tree(b.t, &out, dir)
	}
	return out.String()
}

func sortBy(list []map[string]any, key string) {
	slices.SortFunc(list, func(a, b map[string]any) int { return strings.Compare(fmt.Sprint(a[key]), fmt.Sprint(b[key])) })
}

func labelsOf(v any) map[string]string {
	out := map[string]string{}
	m, _ := v.(map[string]any)
	for k, l := range m {
		out[k], _ = l.(string)
	}
	return out
}

func marshal(t testing.TB, v any) []byte {
	t.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// tree writes the names, modes and sums of all files below a directory.
func tree(t testing.TB, out *strings.Builder, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		sum := ""
		if info.Mode().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			sum = fmt.Sprintf("%x", sha256.Sum256(data))
		}
		fmt.Fprintf(out, "file %s %s %s\n", path, info.Mode(), sum)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Diff names the first line in which two inventories differ.
func Diff(before, after string) string {
	b, a := strings.Split(before, "\n"), strings.Split(after, "\n")
	for i := range max(len(a), len(b)) {
		var was, is string
		if i < len(b) {
			was = b[i]
		}
		if i < len(a) {
			is = a[i]
		}
		if was != is {
			return fmt.Sprintf("was %q\nis  %q", was, is)
		}
	}
	return ""
}
