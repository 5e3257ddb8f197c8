// SPDX-License-Identifier: Apache-2.0
#error "a build without ZeroMQ includes <zmq.hpp>"
