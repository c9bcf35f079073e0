package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/playguard/dockertest"
	"github.com/fusevm/fuse/internal/playguard/model"
)

// api asks a daemon itself: rows ask much, and each call of the docker command
// is a process.
type api struct {
	t      testing.TB
	client *http.Client
}

func newAPI(t testing.TB, d *dockertest.Daemon) *api {
	t.Helper()
	socket := strings.TrimPrefix(d.Host, "unix://")
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &api{t, &http.Client{Transport: transport}}
}

// do makes a request that has to succeed.
func (a *api) do(method, path string, query url.Values, into any) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, "http://docker"+path+"?"+query.Encode(), http.NoBody)
	if err != nil {
		a.t.Fatal(err)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := a.client.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode/100 != 2 {
		a.t.Fatalf("%s %s: %d %s %v", method, path, res.StatusCode, raw, err)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal(raw, into); err != nil {
		a.t.Fatal(err)
	}
}

func (a *api) get(path string, query url.Values, into any) {
	a.t.Helper()
	a.do(http.MethodGet, path, query, into)
}

// labelled selects by one label.
func labelled(label, value string) url.Values {
	return url.Values{"all": {"1"}, "filters": {fmt.Sprintf(`{"label":[%q]}`, label+"="+value)}}
}

type listed struct {
	ID     string `json:"Id"`
	Name   string
	State  string
	Labels map[string]string
}

// containers lists those with a label, in any state.
func (a *api) containers(query url.Values) (out []listed) {
	a.t.Helper()
	a.get("/containers/json", query, &out)
	slices.SortFunc(out, func(x, y listed) int { return strings.Compare(x.ID, y.ID) })
	return out
}

// Containers lists what Docker itself says: "service state" of a project,
// sorted, as somebody on the machine sees it.
func (h *Host) Containers(p model.Project) (list []string) {
	h.t.Helper()
	for _, c := range h.api.containers(labelled("com.docker.compose.project", p.String())) {
		list = append(list, c.Labels["com.docker.compose.service"]+" "+c.State)
	}
	slices.Sort(list)
	return list
}

// IDs lists the project's containers, sorted.
func (h *Host) IDs(p model.Project) (ids []string) {
	h.t.Helper()
	for _, c := range h.api.containers(labelled("com.docker.compose.project", p.String())) {
		ids = append(ids, c.ID)
	}
	return ids
}

// ID is the container of a service; empty if there is none.
func (h *Host) ID(p model.Project, service string) (id string) {
	h.t.Helper()
	for _, c := range h.api.containers(labelled("com.docker.compose.project", p.String())) {
		if c.Labels["com.docker.compose.service"] == service {
			id = c.ID
		}
	}
	return id
}

// remove takes everything away that carries a label with this value.
func (a *api) remove(label, value string) {
	a.t.Helper()
	for _, c := range a.containers(labelled(label, value)) {
		a.do(http.MethodDelete, "/containers/"+c.ID, url.Values{"force": {"1"}}, nil)
	}
	var networks []listed
	a.get("/networks", labelled(label, value), &networks)
	for _, n := range networks {
		a.do(http.MethodDelete, "/networks/"+n.ID, nil, nil)
	}
	var volumes struct{ Volumes []listed }
	a.get("/volumes", labelled(label, value), &volumes)
	for _, v := range volumes.Volumes {
		a.do(http.MethodDelete, "/volumes/"+v.Name, nil, nil)
	}
}
