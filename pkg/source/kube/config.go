// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"
)

// Content types of the API.
const (
	ContentProtobuf = "application/vnd.kubernetes.protobuf"
	ContentJSON     = "application/json"
)

// dialTimeout is short, so that a server whose machine is off does not delay the next one.
const dialTimeout = 5 * time.Second

// serviceAccountDir is where a pod finds its service account.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"

// Config says how to reach the API.
type Config struct {
	// Kubeconfig is a file; empty means the pod's own service account.
	Kubeconfig string
	// APIServers are tried in turn, before the server of the kubeconfig or of the pod's environment.
	APIServers []string
	// ContentType is what is sent, AcceptContentTypes what is asked for; empty means protobuf, and JSON where a server
	// has no protobuf.
	ContentType, AcceptContentTypes string
	QPS                             float32
	Burst                           int
	// Version is shunt's version, for the user agent.
	Version string

	// serviceAccount replaces serviceAccountDir in tests.
	serviceAccount string
}

// errNoCredentials is returned when nothing tells how to reach the API.
var errNoCredentials = errors.New("find an API server: this is not a pod with a service account, and no kubeconfig " +
	"is given; use --kubeconfig, or --manifests for a node without an API server")

// rest returns the client configuration and the servers to try, the first one first.
func (c Config) rest() (*rest.Config, []*url.URL, error) {
	out, own, err := c.credentials()
	if err != nil {
		return nil, nil, err
	}
	servers, err := c.servers(own)
	if err != nil {
		return nil, nil, err
	}
	out.Host = servers[0].String()
	out.ContentType, out.AcceptContentTypes = c.ContentType, c.AcceptContentTypes
	if out.ContentType == "" {
		out.ContentType = ContentProtobuf
	}
	if out.AcceptContentTypes == "" {
		out.AcceptContentTypes = out.ContentType
		if out.ContentType != ContentJSON {
			out.AcceptContentTypes += "," + ContentJSON
		}
	}
	out.UserAgent = "shunt/" + c.Version
	out.WarningHandler = rest.NoWarnings{}
	out.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	if c.QPS > 0 {
		out.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, max(c.Burst, 1))
	} else {
		out.QPS = -1
	}
	return out, servers, nil
}

// servers returns the addresses to try, each once. own is the server that came with the credentials, if any.
func (c Config) servers(own string) ([]*url.URL, error) {
	var out []*url.URL
	for _, text := range append(slices.Clone(c.APIServers), own) {
		if text == "" {
			continue
		}
		server, err := parseServer(text)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(out, func(u *url.URL) bool { return *u == *server }) {
			out = append(out, server)
		}
	}
	if len(out) == 0 {
		return nil, errNoCredentials
	}
	return out, nil
}

// parseServer parses "https://host:port", or "host:port" for the same.
func parseServer(text string) (*url.URL, error) {
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("parse API server %q: give it as https://HOST:PORT", text)
	}
	return &url.URL{Scheme: u.Scheme, Host: u.Host, Path: strings.TrimSuffix(u.Path, "/")}, nil
}

// credentials returns a configuration with the means to authenticate and the server that comes with them.
func (c Config) credentials() (*rest.Config, string, error) {
	if c.Kubeconfig != "" {
		return c.fromKubeconfig()
	}
	return c.fromServiceAccount()
}

func (c Config) fromKubeconfig() (*rest.Config, string, error) {
	loaded, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		return nil, "", fmt.Errorf("read kubeconfig %s: %w", c.Kubeconfig, cause(err))
	}
	if err := clientcmd.ResolveLocalPaths(loaded); err != nil {
		return nil, "", fmt.Errorf("read kubeconfig %s: %w", c.Kubeconfig, err)
	}
	overrides := &clientcmd.ConfigOverrides{}
	if len(c.APIServers) > 0 {
		// A kubeconfig without a server is as good as any when the servers are given.
		if named := loaded.Contexts[loaded.CurrentContext]; named == nil || loaded.Clusters[named.Cluster] == nil ||
			loaded.Clusters[named.Cluster].Server == "" {
			overrides.ClusterInfo.Server = c.APIServers[0]
		}
	}
	out, err := clientcmd.NewDefaultClientConfig(*loaded, overrides).ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("use kubeconfig %s: %w", c.Kubeconfig, err)
	}
	return out, out.Host, nil
}

// cause drops the file's name from an error that is about to be given it.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// fromServiceAccount uses the pod's service account. The environment names the ClusterIP of the Service "kubernetes",
// which cannot be reached before something translates it; it comes last.
func (c Config) fromServiceAccount() (*rest.Config, string, error) {
	dir := c.serviceAccount
	if dir == "" {
		dir = serviceAccountDir
	}
	token := filepath.Join(dir, "token")
	if _, err := os.Stat(token); err != nil {
		if len(c.APIServers) > 0 && !slices.ContainsFunc(c.APIServers, func(s string) bool { return !strings.HasPrefix(s, "http://") }) {
			return &rest.Config{}, "", nil
		}
		return nil, "", errNoCredentials
	}
	out := &rest.Config{BearerTokenFile: token}
	if ca := filepath.Join(dir, "ca.crt"); readable(ca) {
		out.TLSClientConfig.CAFile = ca
	}
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return out, "", nil
	}
	return out, "https://" + net.JoinHostPort(host, port), nil
}

func readable(file string) bool {
	f, err := os.Open(file)
	if err != nil {
		return false
	}
	return f.Close() == nil
}
